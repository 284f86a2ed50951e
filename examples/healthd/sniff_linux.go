package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sniff shows the packets to and from target until stop is called, for probers whose sockets are their own.
func (t *tracer) sniff(target netip.AddrPort) (stop func(), err error) {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return nil, fmt.Errorf("packets are not shown: %w; that needs CAP_NET_RAW", err)
	}
	tv := unix.NsecToTimeval(int64(50 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) // the host's other packets come here, too
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 1<<16)
		s := &sniffed{target: target, decode: t.decode}
		var end time.Time // once it is asked for: what has come until then is still shown, however busy the host is with others
		for {
			if end.IsZero() {
				select {
				case <-done:
					end = time.Now().Add(time.Second)
				default:
				}
			}
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil { // nothing for a while, or a signal
				if !end.IsZero() && !errors.Is(err, unix.EINTR) {
					return
				}
				continue
			}
			if !end.IsZero() && time.Now().After(end) {
				return
			}
			ll, ok := from.(*unix.SockaddrLinklayer)
			if ok && ll.Pkttype == unix.PACKET_OUTGOING {
				// The loopback interface shows every packet twice.
				if i, err := net.InterfaceByIndex(ll.Ifindex); err == nil && i.Flags&net.FlagLoopback != 0 {
					continue
				}
			}
			if text := s.describe(buf[:n]); text != "" {
				t.say("%s", text)
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
		_ = unix.Close(fd)
	}), nil
}
