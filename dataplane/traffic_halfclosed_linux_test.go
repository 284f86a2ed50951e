package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/testenv"
)

// TestNetnsHalfClosed: clients send their request and close their side; the servers take a while, and then answer at length.
func TestNetnsHalfClosed(t *testing.T) {
	for name, change := range map[string]func(s *dataplane.Service, v6 bool){
		"NAT":             func(*dataplane.Service, bool) {},
		"full NAT":        func(s *dataplane.Service, v6 bool) { s.Forward, s.Locals = dataplane.FullNAT, []netip.Addr{wlocal(v6)} },
		"delayed binding": func(s *dataplane.Service, _ bool) { s.Delay = &dataplane.Delay{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			w := newWorld(t, how{service: change, routes: []netip.Prefix{netip.PrefixFrom(wlocal(false), 32), netip.PrefixFrom(wlocal(true), 128)}})
			answer := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
			for _, v6 := range []bool{false, true} {
				for i, host := range w.servers {
					ln, err := host.Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), 5060).String())
					require.NoError(t, err)
					testenv.Accept(t, ln, func(c net.Conn) {
						request, err := io.ReadAll(c) // to the client's FIN
						if err != nil {
							return
						}
						time.Sleep(300 * time.Millisecond)
						_, _ = c.Write(append(request, answer...))
					})
				}
				const clients = 10
				errs := make(chan error)
				for n := range clients {
					go func() {
						errs <- func() error {
							ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
							defer cancel()
							c, err := w.client.DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), 5060).String())
							if err != nil {
								return err
							}
							defer c.Close()
							_ = c.SetDeadline(time.Now().Add(60 * time.Second))
							request := fmt.Appendf(nil, "request %d\n", n)
							_, err = c.Write(request)
							got, rerr := []byte(nil), errors.Join(err, c.(*net.TCPConn).CloseWrite())
							if rerr == nil {
								got, rerr = io.ReadAll(c)
							}
							if rerr == nil && !bytes.Equal(got, append(request, answer...)) {
								rerr = fmt.Errorf("%d bytes came back, or others than were sent", len(got))
							}
							return rerr
						}()
					}()
				}
				for range clients {
					require.NoError(t, <-errs, "IPv6 %v", v6)
				}
				require.Zero(t, w.plane.Stats().Resets)
			}
		})
	}
}
