"""What happens in a training: typed events, which the frameworks' adapters make."""
