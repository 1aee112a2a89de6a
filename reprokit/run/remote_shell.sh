#!/bin/sh
# Takes the place of ssh for mpirun: what it starts on another host is started under reprokit there.
# usage: remote_shell.sh HOST WORD ..., with the variables of remote_hosts.py
quoted() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }
host=$1
shift
script="host=$(quoted "${host##*@}")
REPROKIT_DAEMON=$(quoted "$*")
REPROKIT_REMOTE_SHELL=$(quoted "$REPROKIT_REMOTE_SHELL")
export REPROKIT_DAEMON REPROKIT_REMOTE_SHELL
$REPROKIT_REMOTE"
eval "exec $REPROKIT_REMOTE_SHELL $(quoted "$host") $(quoted "exec sh -c $(quoted "$script")")"
