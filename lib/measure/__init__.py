"""One file per study: `measure` writes its tables from models; notebooks read and draw them."""
