"""What notebooks run and say: each study's rows, their sums, and the sentences that follow."""
