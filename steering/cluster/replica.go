package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// A Replica is a table that members follow at each other. Its changes have numbers, 1, 2, 3 and
// so on, and it remembers the last ones. What Apply and Restore bring must not come out of Changes
// again, or two tables that follow each other never come to rest. The methods are called by
// several goroutines at once.
//
// clienttable.Feed and sslpersist.Feed satisfy it.
type Replica interface {
	// LastSeq returns the number of the last change.
	LastSeq() uint64
	// AppendChanges appends the changes after a number to b, up to about limit bytes, in a form that
	// Apply of another balancer's Replica understands, and returns the number of the last one. The error says that they
	// are not remembered any more.
	AppendChanges(b []byte, after uint64, limit int) (out []byte, last uint64, err error)
	// Apply makes changes of another balancer's.
	Apply(b []byte) error
	// Snapshot writes all that is there. Changes after LastSeq, asked for before, complete it. Restore of one takes nothing
	// away, so deletions that are not remembered any more are not followed: such entries age.
	Snapshot(w io.Writer) error
	// Restore takes a snapshot of another balancer's.
	Restore(r io.Reader) error
}

// Messages of bulk streams begin with their kind:
//
//	settings  see appendSettings, twice
//	follow    feed 1+n | epoch 8 | number 8         the follower has all up to there
//	changes   feed 1+n | from 8 | last 8 | bytes     changes after from, up to last
//	part      feed 1+n | last 8 | part 4 | end 1 | bytes   of a snapshot
const (
	bulkSettings = iota + 1
	bulkFollow
	bulkChanges
	bulkPart
)

const (
	// partSize bounds a message of changes, and one of a snapshot.
	partSize = 48 << 10
	// followAgain is how long a follower hears nothing before it asks again; leaders say something
	// at least every heartbeat.
	followAgain = 5 * time.Second
	heartbeat   = time.Second
)

var errBulk = errors.New("cluster: malformed bulk message")

type feedKey struct {
	m    flowshare.Member
	feed string
}

// following is where this member is in another one's feed.
type following struct {
	seq   uint64
	heard time.Time
	asked time.Time
	parts uint32 // of the snapshot that comes in
	pipe  *io.PipeWriter
}

// leading is where another member is in a feed of ours.
type leading struct {
	seq    uint64
	sent   time.Time
	snap   bool // a snapshot is under way
	needed bool // a snapshot is needed
}

func bulkHead(kind byte, feed string) []byte {
	return append(append([]byte{kind}, byte(len(feed))), feed...)
}

// bulk takes a message of another member.
func (c *Cluster) bulk(from flowshare.Member, b []byte) error {
	if len(b) < 2 {
		return errBulk
	}
	kind := b[0]
	if kind == bulkSettings {
		return c.onSettings(from.Name, b[1:])
	}
	n := int(b[1])
	if len(b) < 2+n+16 && (kind != bulkPart || len(b) < 2+n+13) {
		return errBulk
	}
	feed, b := string(b[2:2+n]), b[2+n:]
	r := c.cfg.Replicas[feed]
	if r == nil {
		c.count.unknownFeeds.Add(1) // another configuration; told elsewhere
		return nil
	}
	k := feedKey{from, feed}
	switch kind {
	case bulkFollow:
		if len(b) != 16 {
			return errBulk
		}
		c.onFollow(k, r, binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]))
	case bulkChanges:
		return c.onChanges(k, r, binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), b[16:])
	case bulkPart:
		return c.onPart(k, r, binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), b[12] != 0, b[13:])
	default:
		return errBulk
	}
	return nil
}

// onFollow: another member follows one of our feeds from a number on.
func (c *Cluster) onFollow(k feedKey, _ Replica, epoch, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[k.m.Name]; m == nil || m.id() != k.m {
		return
	}
	l := c.leads[k]
	if l == nil {
		l = &leading{}
		c.leads[k] = l
	}
	if !l.snap {
		l.seq, l.needed = seq, epoch != c.self.Epoch
	}
}

// lead sends the followers what is new.
func (c *Cluster) lead(now time.Time) {
	type job struct {
		k feedKey
		l *leading
		s *link
	}
	var jobs []job
	c.mu.Lock()
	for k, l := range c.leads {
		if s := c.links[linkKey{k.m, classBulk}]; s == nil {
			delete(c.leads, k)
		} else if !l.snap {
			jobs = append(jobs, job{k, l, s})
		}
	}
	c.mu.Unlock()
	for _, j := range jobs {
		r := c.cfg.Replicas[j.k.feed]
		if r == nil {
			continue
		}
		c.mu.Lock()
		after, needed, sent := j.l.seq, j.l.needed, j.l.sent
		c.mu.Unlock()
		for range 64 { // then others have their turn
			if needed {
				break
			}
			b := bulkHead(bulkChanges, j.k.feed)
			at := len(b)
			b = append(b, make([]byte, 16)...)
			b, last, err := r.AppendChanges(b, after, c.rate.piece(partSize))
			if err != nil {
				needed = true
				break
			}
			if last == after && now.Sub(sent) < heartbeat {
				break
			}
			if last != after && c.rate.wait(now) > 0 {
				if now.Sub(sent) < heartbeat {
					break
				}
				b, last = b[:at+16], after // that we are here says as much as any change
			}
			binary.BigEndian.PutUint64(b[at:], after)
			binary.BigEndian.PutUint64(b[at+8:], last)
			if !j.s.send(b, false) {
				break
			}
			c.rate.spend(len(b))
			sent = now
			c.count.changes.Add(last - after)
			if last == after {
				break
			}
			after = last
		}
		c.mu.Lock()
		if !j.l.snap {
			j.l.seq, j.l.sent, j.l.needed = after, sent, needed
			if needed {
				j.l.snap = true
				c.wg.Go(func() { c.sendSnapshot(j.k, r, j.l, j.s) })
			}
		}
		c.mu.Unlock()
	}
}

// sendSnapshot sends all of a table.
func (c *Cluster) sendSnapshot(k feedKey, r Replica, l *leading, s *link) {
	seq := r.LastSeq()
	w := &partWriter{c: c, s: s, feed: k.feed, seq: seq}
	err := r.Snapshot(w)
	if err == nil {
		err = w.flush(true)
	}
	if err != nil {
		c.log.Warn("snapshot not sent", "to", k.m.Name, "feed", k.feed, "err", err)
	} else {
		c.count.snapshots.Add(1)
	}
	c.mu.Lock()
	l.snap, l.needed, l.seq, l.sent = false, err != nil, seq, time.Now()
	c.mu.Unlock()
}

// partWriter cuts a snapshot into messages.
type partWriter struct {
	c    *Cluster
	s    *link
	feed string
	seq  uint64
	part uint32
	buf  []byte
}

// Write implements io.Writer.
func (w *partWriter) Write(b []byte) (int, error) {
	n := len(b)
	size := w.c.rate.piece(partSize)
	for len(b) > 0 {
		m := min(len(b), size-len(w.buf))
		w.buf, b = append(w.buf, b[:m]...), b[m:]
		if len(w.buf) == size {
			if err := w.flush(false); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *partWriter) flush(end bool) error {
	b := binary.BigEndian.AppendUint64(bulkHead(bulkPart, w.feed), w.seq)
	b = binary.BigEndian.AppendUint32(b, w.part)
	last := byte(0)
	if end {
		last = 1
	}
	b = append(append(b, last), w.buf...)
	w.buf = w.buf[:0]
	w.part++
	for d := w.c.rate.wait(time.Now()); d > 0; d = w.c.rate.wait(time.Now()) {
		select {
		case <-time.After(d):
		case <-w.s.ended:
			return context.Canceled
		case <-w.c.running.Done():
			return w.c.running.Err()
		}
	}
	w.c.rate.spend(len(b))
	return w.s.sendWait(w.c.running, b)
}

// onChanges: what a feed we follow has new.
func (c *Cluster) onChanges(k feedKey, r Replica, from, last uint64, b []byte) error {
	c.mu.Lock()
	f := c.follows[k]
	if f == nil || f.pipe != nil || f.seq != from || last < from {
		if f != nil && f.pipe == nil {
			f.heard = time.Time{} // a gap: ask again
		}
		c.mu.Unlock()
		return nil
	}
	f.heard = time.Now()
	c.mu.Unlock()
	if len(b) > 0 {
		if err := r.Apply(b); err != nil {
			c.count.notApplied.Add(1)
			c.log.Warn("changes not applied", "from", k.m.Name, "feed", k.feed, "err", err)
		}
	}
	c.mu.Lock()
	f.seq = last
	c.mu.Unlock()
	return nil
}

// onPart: a piece of a snapshot.
func (c *Cluster) onPart(k feedKey, r Replica, seq uint64, part uint32, end bool, b []byte) error {
	c.mu.Lock()
	f := c.follows[k]
	if f == nil {
		c.mu.Unlock()
		return nil
	}
	f.heard = time.Now()
	if part == 0 && c.running.Err() == nil {
		if f.pipe != nil {
			f.pipe.CloseWithError(io.ErrUnexpectedEOF)
		}
		pr, pw := io.Pipe()
		f.pipe, f.parts = pw, 0
		c.wg.Go(func() {
			err := r.Restore(pr)
			pr.CloseWithError(errors.Join(io.ErrClosedPipe, err)) // Restore may stop early
			c.mu.Lock()
			defer c.mu.Unlock()
			if f.pipe != pw {
				return
			}
			f.pipe, f.heard = nil, time.Time{}
			if err == nil {
				f.seq, f.heard = seq, time.Now()
				c.count.restored.Add(1)
			} else {
				f.seq, f.asked = 0, time.Time{}
				c.log.Warn("snapshot refused", "from", k.m.Name, "feed", k.feed, "err", err)
			}
		})
	}
	pw := f.pipe
	if pw == nil || f.parts != part {
		c.mu.Unlock()
		if pw != nil {
			pw.CloseWithError(io.ErrUnexpectedEOF) // a part was lost with a stream
		}
		return nil
	}
	f.parts++
	c.mu.Unlock()
	// Why Restore wants no more it says itself.
	if _, err := pw.Write(b); err == nil && end {
		pw.Close()
	}
	return nil
}

// follow asks to be told of the feeds of others.
func (c *Cluster) follow(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, f := range c.follows {
		if m := c.members[k.m.Name]; m == nil || m.id() != k.m {
			if f.pipe != nil {
				f.pipe.CloseWithError(io.ErrUnexpectedEOF)
			}
			delete(c.follows, k)
		}
	}
	for name, m := range c.members {
		if !c.partners(name) {
			continue
		}
		s := c.links[linkKey{m.id(), classBulk}]
		for feed := range c.cfg.Replicas {
			k := feedKey{m.id(), feed}
			f := c.follows[k]
			if f == nil {
				f = &following{}
				c.follows[k] = f
			}
			if f.pipe != nil && now.Sub(f.heard) >= followAgain {
				f.pipe.CloseWithError(io.ErrUnexpectedEOF)
			}
			if s == nil || now.Sub(f.heard) < followAgain || now.Sub(f.asked) < heartbeat {
				continue
			}
			epoch := uint64(0)
			if f.seq > 0 || !f.heard.IsZero() {
				epoch = m.epoch
			}
			b := binary.BigEndian.AppendUint64(bulkHead(bulkFollow, feed), epoch)
			if s.send(binary.BigEndian.AppendUint64(b, f.seq), true) {
				f.asked = now
			}
		}
	}
}

// partners says whether this member follows another one; c.mu is held.
func (c *Cluster) partners(name string) bool {
	if len(c.members) < defaultThreshold {
		return true
	}
	pair := ""
	for _, m := range c.cfg.Members {
		if m.Name == c.cfg.Node {
			pair = m.Pair
		}
	}
	for _, m := range c.cfg.Members {
		if m.Name == name {
			return pair != "" && m.Pair == pair
		}
	}
	return false
}

// giveUp ends the snapshots that come in.
func (c *Cluster) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.follows {
		if f.pipe != nil {
			f.pipe.CloseWithError(io.ErrUnexpectedEOF)
		}
	}
}
