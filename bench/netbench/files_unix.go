//go:build unix

package main

import "syscall"

// raiseFiles raises the limit of open files for that many sessions, for this program and those it starts, and returns for how many it
// does.
func raiseFiles(sessions int) (int, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	want := l
	want.Max = max(l.Max, filesFor(sessions))
	want.Cur = want.Max
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want) != nil { // may not go beyond what there is
		want.Cur, want.Max = l.Max, l.Max
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want); err != nil {
			return 0, err
		}
	}
	return int(min(want.Cur-min(want.Cur, filesFor(1000)), filesFor(sessions)) / 2), nil
}
