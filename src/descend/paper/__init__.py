"""Studies: which runs a figure or a table of the paper needs, how they are carried out, and what they let one say."""
