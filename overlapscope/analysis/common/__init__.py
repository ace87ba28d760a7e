"""What the rooms of the analysis share: findings, their words, the table of causes."""
