"""`t5xpg report`: runs to look at, as a page or in the terminal, from what they wrote into MODEL_DIR.

reading      a MODEL_DIR's numbers, predictions, settings and machine; T5X's own runs too
event_files  TensorBoard's files without TensorFlow
curves       which numbers are drawn, and in which units
answers      predictions beside their targets: which parts are right
facts        what is said of runs in words and tables
charts, page, terminal
             how all this looks
"""
