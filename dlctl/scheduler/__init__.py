"""What dlctl knows of batch schedulers: pure pairs of a question's script and its answer's parser."""
