"""Questions put to replays: the tests start real trainings and ask them afterwards."""
