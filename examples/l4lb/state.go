package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// saved is the first line of the state file; the data plane's own state follows it.
type saved struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"`
	Wishes  wishes    `json:"wishes"`
	Up      []string  `json:"up"` // nodes that were up: they serve at once, until their check says otherwise

	rest *bufio.Reader
	file *os.File
}

// freshState is how old a state may be for its nodes to be believed up. Sessions look after their own age.
const freshState = 2 * time.Minute

// readState opens the state file; nil if there is none that can be used.
func (in *instance) readState() *saved {
	name := in.conf.State.path()
	if name == "" {
		return nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		in.log.Warn("saved state not read", "err", err)
		return nil
	}
	s := &saved{rest: bufio.NewReader(f), file: f}
	line, err := s.rest.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err == nil && s.Version != 1 {
		err = fmt.Errorf("version %d: this program knows version 1", s.Version)
	}
	if err != nil {
		f.Close()
		in.log.Warn("saved state refused", "file", name, "err", err)
		return nil
	}
	if s.Wishes == nil {
		s.Wishes = wishes{}
	}
	return s
}

// restore takes the sessions over, before the first packet.
func (in *instance) restore(s *saved) {
	if s == nil {
		return
	}
	defer s.file.Close()
	if age := time.Since(s.At); age >= 0 && age < freshState {
		for _, node := range s.Up {
			in.plane.SetUp(node, true)
		}
	}
	n, err := in.plane.Restore(s.rest)
	if err != nil {
		in.log.Warn("saved sessions refused", "err", err)
		return
	}
	in.log.Info("sessions restored", "sessions", n.Sessions, "associations", n.Associations, "unknown", n.Unknown, "refused", n.Refused, "saved", s.At)
}

// keepState writes the state now and then, so that a crash loses little.
func (in *instance) keepState(ctx context.Context) error {
	if in.conf.State.path() == "" {
		return nil
	}
	t := time.NewTicker(in.conf.State.interval())
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			in.writeState()
		}
	}
}

// writeState writes the state file, in one step for whoever reads it.
func (in *instance) writeState() {
	in.mu.Lock()
	defer in.mu.Unlock()
	name := in.conf.State.path()
	if name == "" {
		return
	}
	s := saved{Version: 1, At: time.Now(), Wishes: in.wishes}
	for _, pool := range in.pools.byFarm {
		for _, st := range pool.All() {
			if st.Up {
				s.Up = append(s.Up, st.Node.Name)
			}
		}
	}
	slices.Sort(s.Up)
	if err := writeAtomically(name, func(w io.Writer) error {
		if err := json.NewEncoder(w).Encode(s); err != nil {
			return err
		}
		_, err := in.plane.WriteTo(w)
		return err
	}); err != nil {
		in.log.Error("state not saved", "err", err)
	}
}

func writeAtomically(name string, write func(io.Writer) error) error {
	fresh := name + ".new"
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	if err := errors.Join(write(w), w.Flush(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return os.Rename(fresh, name)
}
