"""Arrivals count from the first row. A row one day and one second later arrives at 86401 s, and one
that is a second earlier than the first at -1 s."""
import os, sys, tempfile
from conformance.traffic.traces import load

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "t.csv")
    with open(path, "w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                   "2023-11-16 18:15:46.5000000,10,1\n"
                   "2023-11-17 18:15:47.5000000,10,1\n"
                   "2023-11-16 18:15:45.5000000,10,1\n")
    found = [row.arrival_seconds for row in load(path, "azure")]
print(found)
sys.exit(int(found != [0.0, 86401.0, -1.0]))
