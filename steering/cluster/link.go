package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

const (
	// linkQueue bounds the frames waiting for a stream.
	linkQueue = 64
	// idleAfter is how long a stream without frames stays open.
	idleAfter = time.Minute
	// helloWait is how long opening a stream may take, and writeWait how long a frame.
	helloWait = 3 * time.Second
	writeWait = 5 * time.Second
	redialMin = 100 * time.Millisecond
	redialMax = 2 * time.Second
)

// A link is this member's stream of one class to another member. It is opened when there is
// something to send.
type link struct {
	c      *Cluster
	to     flowshare.Member
	addr   string
	class  uint8
	queue  chan []byte
	urgent chan []byte
	opened int
	up     atomic.Bool
	cancel context.CancelFunc
	ended  <-chan struct{}
}

func (c *Cluster) newLink(ctx context.Context, to flowshare.Member, addr string, class uint8) *link {
	l := &link{c: c, to: to, addr: addr, class: class, queue: make(chan []byte, linkQueue), urgent: make(chan []byte, linkQueue)}
	ctx, l.cancel = context.WithCancel(ctx)
	l.ended = ctx.Done()
	c.wg.Go(func() { l.run(ctx) })
	return l
}

// send queues a frame, if there is room.
func (l *link) send(frame []byte, urgent bool) bool {
	q := l.queue
	if urgent {
		q = l.urgent
	}
	select {
	case q <- frame:
		return true
	default:
		return false
	}
}

// sendWait queues a frame as soon as there is room.
func (l *link) sendWait(ctx context.Context, frame []byte) error {
	select {
	case l.queue <- frame:
		return nil
	case <-l.ended:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next waits for a frame.
func (l *link) next(ctx context.Context, idle <-chan time.Time) (frame []byte, ok bool) {
	select {
	case frame = <-l.urgent:
		return frame, true
	default:
	}
	select {
	case <-ctx.Done():
		return nil, false
	case frame = <-l.urgent:
	case frame = <-l.queue:
	case <-idle:
		return nil, false
	}
	return frame, true
}

func (l *link) run(ctx context.Context) {
	wait := redialMin
	for {
		frame, ok := l.next(ctx, nil)
		if !ok {
			return
		}
		err := l.stream(ctx, frame)
		l.up.Store(false)
		if err == nil {
			wait = redialMin
			continue
		}
		if ctx.Err() != nil {
			return
		}
		l.c.count.broken.Add(1)
		l.c.log.Debug("stream broken", "to", l.to.Name, "class", l.class, "err", err)
		if l.class == classFlows {
			l.c.flows.Lost(time.Now(), l.to)
		} else {
			l.c.resend(l.to)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, redialMax)
	}
}

// stream opens a stream and sends frames until there are none for a while.
func (l *link) stream(ctx context.Context, first []byte) error {
	conn, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if l.opened++; l.opened > 1 && l.class == classFlows {
		l.c.flows.Lost(time.Now(), l.to) // what was under way when the former one ended
	}
	l.up.Store(true)
	w := bufio.NewWriterSize(conn, 1<<15)
	var number uint64
	idle := time.NewTimer(idleAfter)
	defer idle.Stop()
	for frame := first; ; {
		number++
		l.c.count.streamed.Add(uint64(len(frame) + frameHead))
		var head [frameHead]byte
		binary.BigEndian.PutUint32(head[:], uint32(len(frame)))
		binary.BigEndian.PutUint64(head[4:], number)
		_ = conn.SetWriteDeadline(time.Now().Add(writeWait))
		if _, err := w.Write(head[:]); err != nil {
			return err
		}
		if _, err := w.Write(frame); err != nil {
			return err
		}
		if len(l.urgent) == 0 && len(l.queue) == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		idle.Reset(idleAfter)
		var ok bool
		if frame, ok = l.next(ctx, idle.C); !ok {
			return ctx.Err()
		}
	}
}

func (l *link) open(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	raw, err := l.c.cfg.Network.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(helloWait))
	conn := raw
	if l.c.secrets != nil {
		t := tls.Client(raw, l.c.secrets.client)
		if err := t.HandshakeContext(ctx); err != nil {
			raw.Close()
			l.c.refused(err)
			return nil, err
		}
		conn = t
	}
	h := hello{l.c.oldest, l.c.newest, l.class, l.c.cfg.Name, l.c.self, l.to}
	if _, err := conn.Write(h.append(nil)); err != nil {
		conn.Close()
		return nil, err
	}
	if _, err := readAnswer(conn); err != nil {
		conn.Close()
		return nil, err
	}
	_ = raw.SetDeadline(time.Time{})
	return conn, nil
}

// receive serves a stream that another member opened.
func (c *Cluster) receive(raw net.Conn) {
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(helloWait))
	conn := raw
	if c.secrets != nil {
		t := tls.Server(raw, c.secrets.server)
		if err := t.Handshake(); err != nil {
			c.refused(err)
			return
		}
		conn = t
	}
	h, err := readHello(conn)
	if err != nil {
		c.refused(err)
		return
	}
	version, ok := agree(c.oldest, c.newest, h.oldest, h.newest)
	code := welcome
	switch {
	case !ok:
		code = otherVersion
	case h.cluster != c.cfg.Name:
		code = otherCluster
	case h.to != c.self || h.from.Name == c.self.Name:
		code = otherMember
	case h.class >= classes:
		code = otherClass
	case !c.knows(h.from):
		code = notYet
	}
	if _, err := conn.Write(appendAnswer(nil, code, version)); err != nil || code != welcome {
		if code != notYet {
			c.count.refused.Add(1)
		}
		return
	}
	_ = raw.SetDeadline(time.Time{})
	r := bufio.NewReaderSize(conn, 1<<15)
	var buf []byte
	for number := uint64(1); ; number++ {
		if buf, err = readFrame(r, buf, number); err != nil {
			if errors.Is(err, errFrame) {
				c.count.malformed.Add(1)
				c.log.Warn("frame refused", "from", h.from.Name, "err", err)
			}
			return
		}
		c.count.received.Add(uint64(len(buf) + frameHead))
		if h.class == classFlows {
			err = c.flows.Receive(time.Now(), h.from, buf)
		} else {
			err = c.bulk(h.from, buf)
		}
		if err != nil {
			c.count.malformed.Add(1)
			c.log.Warn("frame refused", "from", h.from.Name, "err", err)
			return
		}
	}
}

// knows says whether a member is one, in this life. It may be too early for that, then it comes again.
func (c *Cluster) knows(m flowshare.Member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.members[m.Name]
	return k != nil && k.id() == m
}

// resend has settings sent again to a member.
func (c *Cluster) resend(to flowshare.Member) {
	c.mu.Lock()
	if m := c.members[to.Name]; m != nil {
		m.compared = comparison{}
	}
	c.mu.Unlock()
	c.changed()
}

// refused counts who could not prove to belong here. Who only hung up, or was too slow, has proved nothing either way.
func (c *Cluster) refused(err error) {
	var slow net.Error
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, context.Canceled) || errors.As(err, &slow) && slow.Timeout() {
		c.count.broken.Add(1)
		return
	}
	c.count.refused.Add(1)
	c.log.Warn("stream refused", "err", err)
}
