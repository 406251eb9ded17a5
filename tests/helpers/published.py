"""Table 15 of the asymmetric-training paper, written out again."""

TABLE_15 = """
1  MLP    0.0001 0.001 100.0
1  CNN    0.0003 0.01  100.0
1  ViT-6L 0.001  0.1   4.642
7  MLP    0.0001 0.001 0.1
7  CNN    0.0003 0.001 0.1
7  ViT-6L 0.001  0.01  4.642
10 MLP    0.0001 0.001 0.1
10 CNN    0.0003 0.001 1.0
10 ViT-6L 0.001  0.01  4.642
20 MLP    0.0001 0.001 0.1
20 CNN    0.0003 0.001 0.1
20 ViT-6L 0.001  0.01  1.0
"""
CHOSEN = {  # n, architecture: rate, decay, alpha
    (int(n), name): tuple(map(float, values))
    for n, name, *values in (line.split() for line in TABLE_15.split("\n") if line)
}
