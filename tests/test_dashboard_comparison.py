"""Two runs beside each other: parts that add up, verdicts that are the gate's, and what cannot be compared."""



