package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// openHTTP prepares for reading HTTP.
func (c *held) openHTTP() { c.stream = c.svc.delay.Rules.NewStream(l7.Input{}) }

// read looks at what the client has sent, and acts on it if that is enough. full says that no more will be read.
func (w *Worker) read(s *holdShard, c *held, full bool) {
	d := c.svc.delay
	data := c.conn.Data()
	last := full || c.conn.EndOfStream()
	action := l7.Action{Do: l7.Farm}
	switch c.reads() {
	case ReadTLS:
		hello, err := c.feedTLS(data)
		if errors.Is(err, sslpersist.ErrShort) && !full {
			if last {
				w.abort(s, c)
			}
			return
		}
		c.asks = err == nil && !hello.EarlyData && asksTLS(data)
		if d.Rules == nil {
			break
		}
		action = d.Rules.Config().Default
		if err == nil {
			in := l7.Input{TLS: true, ServerName: string(hello.ServerName)}
			for name := range hello.ALPN() {
				in.ALPN = append(in.ALPN, string(name))
			}
			action = d.Rules.Classify(in, nil).Action
		}
	case ReadHTTP:
		dec := c.stream.Next(data).Decision
		switch {
		case dec.Verdict != l7.NeedMore:
			action = dec.Action
			c.asks = asksHTTP(data)
		case full:
			action = d.Rules.Config().Default
		case last:
			action = l7.Action{} // half a request, and no more to come
		default:
			return
		}
	}
	switch action.Do {
	case l7.Farm:
		c.pool = c.svc.pool
		if q := d.farms[action.Farm]; q != nil {
			c.pool = q
		}
		w.place(s, c)
	case l7.Redirect, l7.Reply:
		w.respond(c, &action)
	default:
		w.stats.services[c.svc.no].Refused++
		w.stats.drops[Refused]++
		w.abort(s, c)
	}
}

// asksTLS reports whether data are one record: a client that has said hello waits for the node's.
func asksTLS(data []byte) bool {
	const header = 5
	return len(data) >= header && data[0]&0x80 == 0 && len(data) == header+int(binary.BigEndian.Uint16(data[3:]))
}

// asksHTTP reports whether data are the head of a request without a body, as far as can be said at a glance. What is taken for none waits no
// longer than others do; a body that is not sent before the head is acknowledged waits for some milliseconds.
func asksHTTP(data []byte) bool {
	return bytes.HasSuffix(data, []byte("\r\n\r\n")) && (bytes.HasPrefix(data, []byte("GET ")) || bytes.HasPrefix(data, []byte("HEAD ")))
}

// respond answers the client, and closes the connection.
func (w *Worker) respond(c *held, a *l7.Action) {
	answer, _ := a.AppendResponse(nil)
	w.stats.replies++
	c.pool = c.svc.pool // settled
	c.conn.Reply(w.now, answer, w.emitter(c))
}

// feedTLS gives what was not looked at yet to whoever reads hellos.
func (c *held) feedTLS(data []byte) (sslpersist.ClientHello, error) {
	chunk := data[c.fed:]
	c.fed = len(data)
	if c.tls != nil {
		return c.tls.Client(chunk)
	}
	return c.hello.Client(chunk)
}

// abort resets the client and forgets it.
func (w *Worker) abort(s *holdShard, c *held) {
	if c.conn != nil {
		c.conn.Abort(w.now, w.emitter(c))
	} else {
		c.kept.relay.Abort(w.emitter(c))
	}
	w.forget(s, c)
}

// place opens the connection to the next node, if there is one.
func (w *Worker) place(s *holdShard, c *held) {
	svc := w.snap.service(c.svc.no)
	if svc == nil || svc.delay == nil {
		svc = c.svc // as it was
	}
	for {
		n, reason := w.nodeFor(c, svc)
		if n == nil {
			w.stats.services[svc.no].Refused++
			w.stats.drops[reason]++
			w.abort(s, c)
			return
		}
		c.tried = append(c.tried, n.id)
		to := endOf(n.addr)
		if to.Port == 0 {
			to.Port = c.key.Dst().Port()
		}
		pk := packet{ip: c.probe, key: c.key}
		wire.Parse(c.probe, &pk.v)
		r, reason := w.store(&pk, svc, n, &to)
		if reason == NoPort {
			w.unchoose(n)
			continue
		}
		if reason != NotDropped {
			w.unchoose(n)
		} else if rec := &w.p.slab.recs[r.record()]; rec.flags&isDelayed == 0 || rec.nodeNo != n.no || w.p.slab.recs[r.record()].seam.stage.Load() != connecting {
			reason = NoSession // one is there, from before the service had delayed binding
		}
		if reason != NotDropped {
			w.stats.services[svc.no].Refused++
			w.stats.drops[reason]++
			w.abort(s, c)
			return
		}
		w.fresh = true
		c.session, c.has, c.node = r, true, n
		rec := &w.p.slab.recs[r.record()]
		c.far, c.near = rec.node, rec.client
		if w.link.Ethernet {
			rec.setTags(c.tags)
		}
		if rec.flags&hasLocal != 0 {
			c.near = rec.local
		}
		if c.kept == nil || !w.resume(c) {
			c.conn.Connect(w.now, w.emitter(c))
		}
		return
	}
}

// nodeFor chooses a node that was not tried yet and counts a session on it: by what the client's hello shows, or by its association, and then by the
// metric.
func (w *Worker) nodeFor(c *held, svc *service) (*node, Reason) {
	fits := func(id steering.NodeID) *node {
		n := w.node(id)
		if n == nil || n.pool != c.pool || n.addr.Addr().Is4() != c.key.Dst().Addr().Is4() || slices.Contains(c.tried, id) {
			return nil
		}
		return n
	}
	if len(c.tried) == 0 {
		if n := w.static(svc, c.pool, c.key.Src().Addr()); n != nil && fits(n.id) != nil {
			return n, NotDropped
		} else if n != nil {
			n.pool.Release(n.id)
		}
	}
	if c.tls != nil {
		var got *node
		choice := c.tls.Choose(w.now, func(id steering.NodeID) sslpersist.Availability {
			n := w.node(id)
			if n != nil && n.pool != c.pool {
				return sslpersist.AtLimit // another farm's
			}
			if n = fits(id); n == nil || !n.keep {
				return sslpersist.Down
			}
			if !c.pool.Acquire(id) {
				return sslpersist.AtLimit
			}
			if got != nil {
				got.pool.Release(got.id)
			}
			got = n
			return sslpersist.Up
		})
		if got != nil && choice.By != sslpersist.ByMetric && choice.Node == got.id {
			return got, NotDropped
		}
		if got != nil {
			got.pool.Release(got.id)
		}
	} else if len(c.tried) == 0 {
		if c.kept != nil {
			for i := range c.kept.parked {
				if n := fits(c.kept.parked[i].node.id); n != nil && n.keep && c.pool.Acquire(n.id) {
					return n, NotDropped
				}
			}
		}
		b := c.first
		if k, ok := svc.farmKey(c.pool, c.key); ok {
			b, _ = w.p.assocs().LoadAt(w.now, k)
		}
		if n := fits(steering.NodeID(b.node)); b.node != 0 && n != nil && c.pool.Acquire(n.id) {
			return n, NotDropped
		}
	}
	reason := NoNode
	if len(c.tried) == 0 {
		id, err := c.pool.Pick(steering.Key{Client: c.key.Src().Addr(), Hash: c.key.Hash(w.p.cfg.Seed)})
		switch {
		case err == nil:
			if n := fits(id); n != nil {
				return n, NotDropped
			}
			c.pool.Release(id)
			w.p.notice()
			w.renew()
		case !errors.Is(err, steering.ErrNoNode):
			reason = Overload
		}
	}
	// The metric has no second choice: the next node in order that takes a session.
	after := len(c.tried) == 0
	for range 2 {
		for id, st := range c.pool.All() {
			if after && st.State == steering.Available && fits(id) != nil && c.pool.Acquire(id) {
				return fits(id), NotDropped
			}
			after = after || slices.Contains(c.tried, id)
		}
		after = true
	}
	return nil, reason
}

// farmKey returns the association by which a client's node of a pool is remembered, if it is, for connections whose farm
// is chosen late.
func (s *service) farmKey(q *pool, k clienttable.Flow) (a clienttable.Association, ok bool) {
	if mode := s.conf.Mode; !mode.FullKey() || !mode.SameServer() {
		return a, false
	}
	return clienttable.FarmKey(q.no, k.Src().Addr(), s.clients), true
}

// emitter returns what sends the balancer's own segments of a connection, until it is called for another one.
func (w *Worker) emitter(c *held) splice.Emit {
	w.talk = c
	return w.emit1
}

// say sends a segment of the balancer's own.
func (w *Worker) say(c *held, to splice.Side, s *splice.Segment) {
	src, dst := endOf(c.key.Dst()), endOf(c.key.Src())
	if to == splice.Server {
		if !c.has {
			return
		}
		src, dst = c.near, c.far
	}
	w.sendSegment(c, c.node, to, src, dst, s)
}

// sendSegment sends a segment from one end to another.
func (w *Worker) sendSegment(c *held, n *node, to splice.Side, src, dst wire.End, s *splice.Segment) {
	v6 := c.key.Src().Addr().Is6()
	if s.Flags&splice.SYN != 0 {
		if limit := w.way(c.svc.way).limit(v6, &dst); limit != 0 {
			s.Options.MSS = min(s.Options.MSS, limit)
		}
		if limit := w.p.relayMSS(v6); limit != 0 {
			s.Options.MSS = min(s.Options.MSS, limit)
		}
	}
	ip, from, at := wire.IPv6Len, 0, Headroom
	if !v6 {
		ip, from = wire.IPv4Len, 12
	}
	if w.link.Ethernet {
		at += 14 + int(c.tags.n)
	}
	buf := w.arena.take(at + ip + splice.MaxHeader + len(s.Payload))
	clear(buf[:at])
	m := len(s.Append(buf[at+ip:at+ip], src.Port, dst.Port))
	buf = buf[:at+ip+m]
	b := buf[at:]
	wire.PutHeader(b, src.Addr[from:], dst.Addr[from:], wire.ProtoTCP, 64, 0, ip+m)
	sum := wire.PseudoSum(src.Addr[from:], dst.Addr[from:], wire.ProtoTCP, m).AddBytes(b[ip:]).Checksum()
	binary.BigEndian.PutUint16(b[ip+16:], sum)
	if !w.originate(buf, at, &c.tags) {
		return
	}
	switch {
	case to == splice.Server && n != nil:
		if s.Flags&(splice.SYN|splice.ACK|splice.RST) == splice.SYN {
			w.synSent(n)
		}
		w.stats.nodes[n.no].In.add(ip + m)
		w.stats.services[c.svc.no].In.add(ip + m)
	case to == splice.Client:
		w.stats.services[c.svc.no].Out.add(ip + m)
	}
}

// originate sends a packet of the balancer's own, which begins at an offset of buf, behind room for a frame with these tags, and reports whether
// it could.
func (w *Worker) originate(buf []byte, at int, t *tags) bool {
	pk := packet{buf: buf, ip: buf[at:], l3: at}
	if wire.Parse(pk.ip, &pk.v) != wire.OK {
		return false
	}
	if w.link.Ethernet {
		typ := [2]byte{wire.EtherIPv4 >> 8, wire.EtherIPv4 & 0xff}
		if pk.v.Version == 6 {
			typ = [2]byte{wire.EtherIPv6 >> 8, wire.EtherIPv6 & 0xff}
		}
		copy(buf[Headroom+12:], t.b[:t.n])
		copy(buf[at-2:], typ[:])
		hop, ok := w.p.cfg.NextHop(addrOf(pk.v.Dst(pk.ip)))
		if !ok {
			w.drop(&pk, NoRoute)
			return false
		}
		if hop.MTU > 0 && len(pk.ip) > hop.MTU {
			w.drop(&pk, TooBig) // whom should it tell but itself
			return false
		}
		pk.v.SetTTL(pk.ip, pk.v.TTL(pk.ip)-1)
		hop.frame(buf)
	}
	w.emit(buf)
	return true
}
