"""C++ sources, their build (`build`) and bare bindings: linear layers of few rows (`products`) over weights of 16, 8 or
4 bits (`panels`), decoder layers, and one-pass attention, which `lib.attention` binds. Each algorithm is written once,
on the vectors of `lanes.h` and the threads of `threads.h`; an instruction set is one file beside them.
"""
