"""Controls access: who a caller is, which tools they may see and call, which requests are let in."""
