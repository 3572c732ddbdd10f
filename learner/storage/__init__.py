"""Where training data comes from and results go to.

Imports the contract and `learner.errors`. What passes through are the plan's data stores and the
paths that a learner finds as DATA_DIR and RESULT_DIR.
"""
