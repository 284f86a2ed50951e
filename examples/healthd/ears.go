package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// ear is something that listens.
type ear struct {
	address string
	l       net.Listener
	close   func()
}

// maxAsking bounds the agent checks answered at a time.
const maxAsking = 256

// addresses lists where the file wants to listen, each with what for, so that a change of purpose is a new one.
func (c *config) addresses() (all []string) {
	if c.Listen != "" {
		all = append(all, "http "+c.Listen)
	}
	for _, a := range c.Agents {
		all = append(all, a.address())
	}
	return all
}

func (a agent) address() string { return "agent " + a.Listen + " " + a.Of }

// listen opens what c has and the daemon not yet, or nothing.
func (d *daemon) listen(ctx context.Context, c *config) (fresh map[string]*ear, err error) {
	d.mu.Lock()
	old := d.ears
	d.mu.Unlock()
	fresh = map[string]*ear{}
	var errs []error
	open := func(key, address string, serve func(net.Listener) *ear) {
		if old[key] != nil || fresh[key] != nil {
			return
		}
		l, err := listenAt(address, old)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen on %s: %w", address, err))
			return
		}
		e := serve(l)
		e.address, e.l = address, l
		fresh[key] = e
	}
	if c.Listen != "" {
		open("http "+c.Listen, c.Listen, d.serveHTTP)
	}
	for _, a := range c.Agents {
		open(a.address(), a.Listen, func(l net.Listener) *ear { return d.serveAgent(ctx, l, a.Of) })
	}
	if err := errors.Join(errs...); err != nil {
		for _, e := range fresh {
			e.close()
		}
		return nil, err
	}
	return fresh, nil
}

// listenAt listens on an address. If an ear is there that serves something else, and that will be closed, it shares its socket, so that the
// change of purpose loses no connection.
func listenAt(address string, old map[string]*ear) (net.Listener, error) {
	for _, e := range old {
		t, ok := e.l.(*net.TCPListener)
		if !ok || e.address != address {
			continue
		}
		f, err := t.File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return net.FileListener(f)
	}
	return net.Listen("tcp", address)
}

func (d *daemon) serveHTTP(l net.Listener) *ear {
	s := &http.Server{Handler: d.handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the status page ended", "err", err)
		}
	}()
	return &ear{close: sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			_ = s.Close()
		}
		<-done
	})}
}

// serveAgent answers agent checks about of, or about what the asker names.
func (d *daemon) serveAgent(ctx context.Context, l net.Listener, of string) *ear {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	places := make(chan struct{}, maxAsking)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
					return
				}
				d.log.Error("agent checks", "err", err)
				time.Sleep(100 * time.Millisecond) // out of descriptors, say
				continue
			}
			select {
			case places <- struct{}{}:
				wg.Go(func() {
					d.answer(ctx, c, of)
					<-places
				})
			default:
				_ = c.Close()
			}
		}
	})
	return &ear{close: sync.OnceFunc(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})}
}

// answer says one word about a check or policy. While nobody knows, it waits: HAProxy takes a missing answer for no
// news, and would take a wrong one for the truth.
func (d *daemon) answer(ctx context.Context, c net.Conn, of string) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if of == "" {
		line, err := bufio.NewReader(io.LimitReader(c, 1000)).ReadString('\n')
		if err != nil {
			return
		}
		of = strings.TrimSpace(line)
	}
	timed, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	for {
		t, why, known, changed := d.ask(of)
		if !known {
			d.log.Warn("an agent check names something unknown", "name", of, "from", c.RemoteAddr())
			return
		}
		if t != healthcheck.IsUnknown {
			_, _ = io.WriteString(c, agentLine(t, why))
			break
		}
		select {
		case <-timed.Done():
			return
		case <-changed:
		}
	}
	// What was sent and not read would turn the close into a reset, which may overtake the answer.
	if w, ok := c.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<16))
	}
}

// agentLine is an answer in HAProxy's format (Configuration Manual, "agent-check"). HAProxy knows the word only with a blank
// before the sharp.
func agentLine(t healthcheck.Truth, why string) string {
	if t == healthcheck.IsUp {
		return "up\n"
	}
	why = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, why)
	return "down #" + why[:min(len(why), 200)] + "\n"
}
