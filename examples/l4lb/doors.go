package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"
)

// A door is a place where the admin interface is called.
type door struct {
	l      net.Listener
	server *http.Server
	end    func() // has nobody come by it any more
}

// doors are what the admin interface becomes: those that stay, and those that prepare has opened.
type doors struct {
	conf        admin
	secrets     *secrets
	socket, tcp *door
}

// prepare opens what a has otherwise than was, which is in force: who is refused then has changed nothing.
func (s *adminServer) prepare(was, a admin) (next *doors, err error) {
	next = &doors{conf: a, socket: s.socket, tcp: s.tcp}
	if path := a.socket(); path != was.socket() {
		next.socket = nil
		if path != "" {
			l, err := listenUnix(path)
			if err != nil {
				return nil, err
			}
			next.socket = s.door(open{l}, false)
			next.socket.end = func() {
				_ = os.Remove(path)
				l.Close()
			}
		}
	}
	if a.Listen.IsValid() {
		next.secrets, err = a.readSecrets()
	}
	if err == nil && a.Listen != was.Listen {
		next.tcp = nil
		if a.Listen.IsValid() {
			next.tcp, err = s.listenTLS(a.Listen)
		}
	}
	if err != nil {
		s.forget(next)
		return nil, err
	}
	return next, nil
}

func (s *adminServer) listenTLS(at netip.AddrPort) (*door, error) {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	d := s.door(tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			x := s.secrets.Load()
			if x == nil {
				return nil, errors.New("no longer served over TCP")
			}
			return &x.cert, nil
		},
	}), true)
	d.end = func() { l.Close() }
	return d, nil
}

func (s *adminServer) door(l net.Listener, tcp bool) *door {
	return &door{l: l, server: &http.Server{
		Handler: s.guard(s.handler, tcp), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.With("part", "admin").Handler(), slog.LevelDebug),
	}}
}

// forget closes what prepare has opened for next, which is not to be; nil is nothing.
func (s *adminServer) forget(next *doors) {
	if next == nil {
		return
	}
	if next.socket != nil && next.socket != s.socket {
		next.socket.end()
	}
	if next.tcp != nil && next.tcp != s.tcp {
		next.tcp.end()
	}
}

// become puts next in force. Requests that came by another door are answered, and nobody else comes by it.
func (s *adminServer) become(next *doors) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conf.Store(&next.conf)
	s.secrets.Store(next.secrets)
	for _, x := range []struct {
		is   **door
		next *door
	}{{&s.socket, next.socket}, {&s.tcp, next.tcp}} {
		was := *x.is
		if *x.is = x.next; was == x.next {
			continue
		}
		if x.next != nil && s.serve != nil {
			s.serve(x.next)
		}
		if was != nil {
			_ = was.server.Shutdown(over()) // tells it that the end of its listener is none of its own
			was.end()
			if s.retire != nil {
				s.retire(was)
			}
		}
	}
}

// over is a context that is done.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// run serves until ctx is done. Then nobody is answered any more.
func (s *adminServer) run(ctx context.Context) error {
	failed := make(chan error, 1)
	serve := func(d *door) {
		d.server.BaseContext = func(net.Listener) context.Context { return ctx }
		s.serving.Go(func() {
			if err := d.server.Serve(d.l); !errors.Is(err, http.ErrServerClosed) {
				select {
				case failed <- err:
				default: // one is enough
				}
			}
		})
	}
	retire := func(d *door) { s.serving.Go(func() { d.shut(ctx) }) }
	s.mu.Lock()
	s.serve, s.retire = serve, retire
	for _, d := range s.doors() {
		serve(d)
	}
	s.mu.Unlock()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.mu.Lock()
	s.serve, s.retire = nil, nil
	for _, d := range s.doors() {
		s.serving.Go(func() { d.shut(over()) })
	}
	s.mu.Unlock()
	s.serving.Wait()
	return err
}

// doors are those in force; s.mu is held.
func (s *adminServer) doors() (all []*door) {
	for _, d := range []*door{s.socket, s.tcp} {
		if d != nil {
			all = append(all, d)
		}
	}
	return all
}

// shut has what is under way end until ctx is done, and soon after.
func (d *door) shut(ctx context.Context) {
	if d.server.Shutdown(ctx) == nil {
		return
	}
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if d.server.Shutdown(soon) != nil {
		d.server.Close()
	}
}

// close is the last thing that is done: who listens keeps a second instance from beginning, and so from what this one has yet to undo.
func (s *adminServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.doors() {
		d.end()
	}
}
