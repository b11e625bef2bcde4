"""What the engine and the package around it share; imports neither t5x nor SeqIO."""
