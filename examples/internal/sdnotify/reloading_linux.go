package sdnotify

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Reloading is the state at the start of a reload; Ready ends it. It has the time on the monotonic clock, as Type=notify-reload wants.
func Reloading() string {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return "RELOADING=1"
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", t.Nano()/1000)
}
