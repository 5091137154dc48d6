"""The statistics behind the claims: from the cells of a row of `claim_table` to its evidence."""
