"""What several tests share: the vocabulary of the case catalogue, small scenes, comparisons."""
