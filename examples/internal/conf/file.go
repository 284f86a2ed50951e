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

// A Watcher notices SIGHUP, and changes of a file, from the moment it is made: one that is made before the file is first read misses nothing.
type Watcher struct {
	file string
	last stamp
	hup  chan os.Signal
}

// NewWatcher returns the Watcher of a file. From now on SIGHUP does not end the program, until Close.
func NewWatcher(file string) *Watcher {
	w := &Watcher{file: file, last: stampOf(file), hup: make(chan os.Signal, 1)}
	signal.Notify(w.hup, syscall.SIGHUP)
	return w
}

// Close stops watching.
func (w *Watcher) Close() { signal.Stop(w.hup) }

// Run calls do for each SIGHUP and whenever the file has changed, until ctx is done. SIGHUPs that come while do runs are one.
func (w *Watcher) Run(ctx context.Context, do func()) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.hup:
			// It is read below: a change from now on is one more.
			w.last = stampOf(w.file)
		case <-t.C:
			// A file that is gone for a moment is being written.
			s := stampOf(w.file)
			if s == w.last || s == (stamp{}) {
				continue
			}
			w.last = s
		}
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
