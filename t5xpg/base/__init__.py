"""What both sides share, the engine and the package around it: it imports neither t5x nor SeqIO."""
