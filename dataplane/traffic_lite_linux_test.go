package dataplane_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// liteSocket opens a UDP-Lite socket in a host, with checksums that cover so many bytes, or all with 0.
func liteSocket(ns *netns.Namespace, v6 bool, cover int) (fd int, err error) {
	const proto, sendCoverage, recvCoverage = unix.IPPROTO_UDPLITE, 10, 11 // udplite(7)
	domain := unix.AF_INET
	if v6 {
		domain = unix.AF_INET6
	}
	err = ns.Do(func() error {
		if fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, proto, sendCoverage, cover), unix.SetsockoptInt(fd, proto, recvCoverage, cover),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
	})
	return fd, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// TestNetnsUDPLite has the kernel verify what comes of UDP-Lite through a balancer, whatever the checksum covers.
func TestNetnsUDPLite(t *testing.T) {
	testenv.NeedNetns(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no UDP-Lite")
	}
	require.NoError(t, err)
	unix.Close(fd)
	w := newWorld(t, how{service: func(s *dataplane.Service, _ bool) { s.Forward = dataplane.NAT }})
	for _, v6 := range []bool{false, true} {
		for i, cover := range []int{0, 8, 20} {
			port := uint16(5100 + i)
			stop := make(chan struct{})
			done := make(chan struct{})
			var servers []int
			for j := range w.servers {
				fd, err := liteSocket(w.servers[j], v6, cover)
				require.NoError(t, err)
				require.NoError(t, unix.Bind(fd, sockaddr(netip.AddrPortFrom(waddr(v6, byte(1+j), 2), port))))
				servers = append(servers, fd)
				go func() {
					defer func() { done <- struct{}{} }()
					b := make([]byte, 2000)
					for {
						select {
						case <-stop:
							return
						default:
						}
						if n, from, err := unix.Recvfrom(fd, b, 0); err == nil {
							_ = unix.Sendto(fd, b[:n], 0, from)
						}
					}
				}()
			}
			for range 2 {
				fd, err := liteSocket(w.client, v6, cover)
				require.NoError(t, err)
				require.NoError(t, unix.Connect(fd, sockaddr(netip.AddrPortFrom(wvip(v6), port))))
				sent, got := bytes.Repeat([]byte("lite"), 100), make([]byte, 2000)
				for deadline := time.Now().Add(20 * time.Second); ; {
					_, err := unix.Write(fd, sent)
					n := 0
					if err == nil {
						n, err = unix.Read(fd, got)
					}
					if err == nil && n > 0 {
						require.Equal(t, sent, got[:n])
						break
					}
					require.True(t, time.Now().Before(deadline), fmt.Sprint("no answer, IPv6 ", v6, ", coverage ", cover, ": ", err))
				}
				unix.Close(fd)
			}
			close(stop)
			for range servers {
				<-done
			}
			for _, fd := range servers {
				unix.Close(fd)
			}
		}
	}
	seen := 0
	for s := range w.plane.Sessions() {
		if s.Protocol == unix.IPPROTO_UDPLITE {
			seen++
			require.NotZero(t, s.Out.Packets)
		}
	}
	require.Equal(t, 12, seen)
}
