"""The paper re-measured: its LeNets and an LSTM in its setups C1 to C6, and the tables of results.md."""
