package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// saved is the first line of the state file; the snapshots of TLS sessions follow it, and the data plane's own state.
type saved struct {
	Version  int        `json:"version"`
	At       time.Time  `json:"at"`
	Wishes   wishes     `json:"wishes"`
	Draining bool       `json:"draining"`
	Up       []string   `json:"up"`  // nodes that were up: they serve at once, until their check says otherwise
	TLS      []savedTLS `json:"tls"` // in the order in which they follow

	rest *bufio.Reader
	file *os.File
}

// savedTLS is a snapshot of a service's TLS sessions.
type savedTLS struct {
	Service  string `json:"service"`
	Settings string `json:"settings"`
	Length   int    `json:"length"`
}

// stateVersion is what is written; 1 is without TLS sessions.
const stateVersion = 2

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
	line, err := s.rest.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err == nil && (s.Version < 1 || s.Version > stateVersion) {
		err = fmt.Errorf("version %d: this program knows versions 1 to %d", s.Version, stateVersion)
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
	in.draining = s.Draining
	in.plane.Drain(s.Draining)
	for _, x := range s.TLS {
		in.restoreTLS(x, io.LimitReader(s.rest, int64(x.Length)))
	}
	n, err := in.plane.Restore(s.rest)
	if err != nil {
		in.log.Warn("saved sessions refused", "err", err)
		return
	}
	in.log.Info("sessions restored", "sessions", n.Sessions, "associations", n.Associations, "unknown", n.Unknown, "refused", n.Refused, "saved", s.At)
}

// restoreTLS takes a service's TLS sessions over, if it still has the same settings.
func (in *instance) restoreTLS(x savedTLS, r io.Reader) {
	if t := in.pools.tls[x.Service]; t != nil && t.settings == x.Settings {
		n, err := t.farm.Restore(r, time.Now(), in.pools.id)
		if err != nil {
			in.log.Warn("saved TLS sessions refused", "service", x.Service, "err", err)
		} else {
			in.log.Info("TLS sessions restored", "service", x.Service, "sessions", n.Restored, "expired", n.Expired, "unknown", n.Unknown, "refused", n.Refused)
		}
	}
	_, _ = io.Copy(io.Discard, r) // what follows is told by what comes next
}

// keepState writes the state now and then, so that a crash loses little.
func (in *instance) keepState(ctx context.Context) error {
	last := time.Now()
	return periodically(ctx, time.Second, func() {
		in.mu.Lock()
		every := in.conf.State.interval()
		in.mu.Unlock()
		if now := time.Now(); now.Sub(last) > every-time.Second/2 {
			last = now
			in.writeState()
		}
	})
}

// writeState writes the state file, if there is one.
func (in *instance) writeState() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if name := in.conf.State.path(); name != "" {
		if err := in.saveTo(name); err != nil {
			in.log.Error("state not saved", "err", err)
		}
	}
}

// saveTo writes a state file, in one step for whoever reads it; in.mu is held.
func (in *instance) saveTo(name string) error {
	s := saved{Version: stateVersion, At: time.Now(), Wishes: in.wishes, Draining: in.draining}
	var tls bytes.Buffer
	for _, service := range slices.Sorted(maps.Keys(in.pools.tls)) {
		t, before := in.pools.tls[service], tls.Len()
		if err := t.farm.WriteSnapshot(&tls, s.At, in.pools.name); err != nil {
			in.log.Error("TLS sessions not saved", "service", service, "err", err)
			tls.Truncate(before)
			continue
		}
		s.TLS = append(s.TLS, savedTLS{service, t.settings, tls.Len() - before})
	}
	s.Up = slices.Sorted(maps.Keys(in.pools.up()))
	return writeAtomically(name, func(w io.Writer) error {
		if err := json.NewEncoder(w).Encode(s); err != nil {
			return err
		}
		if _, err := tls.WriteTo(w); err != nil {
			return err
		}
		_, err := in.plane.WriteTo(w)
		return err
	})
}

// writable says why a file could not be written, without touching it.
func writable(name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".try")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func writeAtomically(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
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
