package conf

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// InFile puts the file's name before every fault in it, as compilers do; nil stays nil.
func InFile(name string, err error) error {
	if err == nil {
		return nil
	}
	return &fileError{name, err}
}

type fileError struct {
	name string
	err  error
}

func (e *fileError) Error() string {
	var faults interface{ Unwrap() []error }
	if !errors.As(e.err, &faults) {
		return e.name + ":" + e.err.Error()
	}
	var lines []string
	for _, f := range faults.Unwrap() {
		lines = append(lines, e.name+":"+f.Error())
	}
	return strings.Join(lines, "\n")
}

func (e *fileError) Unwrap() error { return e.err }

// Watch calls do for each SIGHUP and whenever the file has changed, until ctx is done.
func Watch(ctx context.Context, file string, do func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	last := stampOf(file)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-t.C:
			// A file that is gone for a moment is being written.
			if s := stampOf(file); s == last || s == (stamp{}) {
				continue
			}
		}
		last = stampOf(file)
		do()
	}
}

type stamp struct {
	at   time.Time
	size int64
	id   any // of the file itself: a renamed one may be as old and as long
}

func stampOf(file string) stamp {
	st, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{st.ModTime(), st.Size(), fileID(st)}
}
