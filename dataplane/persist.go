package dataplane

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// A saved state begins with the names that its numbers stand for,
//
//	"lbprimDP", version (u32), length (u32), that many bytes of JSON, CRC-32C of all that (u32)
//
// followed by four snapshots of package clienttable, each after its length (u64): of the sessions, of the
// associations, of the connections whose requests are judged, and of those that they have parked.
const (
	saveMagic   = "lbprimDP"
	saveVersion = 3
	maxNames    = 1 << 26
	maxTable    = 1 << 36
)

// ErrSaved is wrapped by the errors that refuse a saved state. Such a state has changed nothing.
var ErrSaved = errors.New("dataplane: saved state refused")

// names are what a saved state's numbers stand for.
type names struct {
	Services []string    `json:"services"`
	Nodes    [][2]string `json:"nodes"` // service and node
}

// savedSession is what is kept of a record. It has neither pointers nor padding.
type savedSession struct {
	vip, node, local wire.End
	flags            uint16
	service, nodeNo  uint32
	tcp              clienttable.TCPState
	counts           [2]Count
	age              time.Duration
	seam             savedSeam
}

// Restored says what became of a saved state.
type Restored struct {
	Sessions, Associations int // taken over
	// Unknown sessions and associations are of services or nodes that are no more, or whose nodes
	// are down or have another address.
	Unknown int
	// Refused found the table full, or another session in their place.
	Refused int
}

// WriteTo writes the sessions and associations, for [Plane.ReadFrom] of another Plane, so that connections
// outlive a restart. It implements io.WriterTo. Sessions that begin meanwhile may be missing.
func (p *Plane) WriteTo(w io.Writer) (n int64, err error) {
	p.numbers.RLock() // until all is written, numbers stand for what dict says
	defer p.numbers.RUnlock()
	now := time.Now()
	snap := p.snap.Load()
	var dict names
	for no := range snap.services {
		dict.Services = append(dict.Services, snap.serviceName(uint32(no)))
	}
	dict.Nodes = make([][2]string, len(snap.nodes))
	for s := range snap.named() {
		for i, nd := range snap.nodes {
			if (s.uses(nd.pool) || s.inline && nd.pool.inter != nil) && !nd.gone {
				dict.Nodes[i] = [2]string{s.conf.Name, nd.name}
			}
		}
	}
	head, err := json.Marshal(dict)
	if err != nil {
		return 0, err
	}
	b := append([]byte(saveMagic), 0, 0, 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[8:], saveVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(head)))
	b = append(b, head...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	m, err := w.Write(b)
	if n = int64(m); err != nil {
		return n, err
	}
	most := records(max(p.MaxSessions(), p.slab.inUse())) // there may be more than there may be from now on
	sessions, err := clienttable.New(&clienttable.Config[clienttable.Flow, savedSession]{MaxEntries: most, Layout: clienttable.Packed})
	if err != nil {
		return n, err
	}
	defer sessions.Close()
	kepts, err := newSavedKepts(most)
	if err != nil {
		return n, err
	}
	defer kepts.close()
	for k, r := range p.sessions().AllAt(now) {
		if r.dir() != toNode {
			continue
		}
		var v savedSession
		known, followed := false, false
		p.peek(k, r, func(rec *record) {
			v = savedSession{
				vip: rec.vip, node: rec.node, local: rec.local, flags: rec.flags, service: rec.service, nodeNo: rec.nodeNo,
				counts: rec.counts(), age: now.Sub(p.time(rec.begun)),
			}
			rec.lock.acquire()
			v.tcp = rec.tcp
			rec.lock.release()
			known = snap.service(rec.service) != nil && int(rec.nodeNo) < len(snap.nodes) && uint32(snap.nodes[rec.nodeNo].id) == r.node
			if rec.flags&isDelayed != 0 {
				var ok bool
				v.seam, ok = rec.saveSeam()
				followed = rec.seam.stage.Load() == replaying
				known = known && (ok || followed)
			}
		})
		if known && followed {
			v.seam, known = kepts.save(p, now, k, r)
		}
		if !known {
			continue // gone, or newer than the names
		}
		if !store(sessions, p.sessions(), now, k, v) {
			break
		}
	}
	m64, err := writeTable(w, now, sessions)
	if n += m64; err != nil {
		return n, err
	}
	assocs, err := clienttable.New(&clienttable.Config[clienttable.Association, savedBinding]{
		MaxEntries: max(p.MaxAssociations(), p.assocs().Stats().Entries), Layout: clienttable.Packed,
	})
	if err != nil {
		return n, err
	}
	defer assocs.Close()
	for k, b := range p.assocs().AllAt(now) {
		nd := nodeByID(snap, b.node)
		if nd == nil || snap.service(b.service) == nil {
			continue
		}
		if !store(assocs, p.assocs(), now, k, savedBinding{nd.no, b.service}) {
			break
		}
	}
	m64, err = writeTable(w, now, assocs)
	if n += m64; err != nil {
		return n, err
	}
	m64, err = writeTable(w, now, kepts.relays)
	if n += m64; err != nil {
		return n, err
	}
	m64, err = writeTable(w, now, kepts.parked)
	return n + m64, err
}

func writeTable[K comparable, V any](w io.Writer, now time.Time, t *clienttable.Table[K, V]) (n int64, err error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	if _, err := t.WriteSnapshot(now, &b); err != nil {
		return 0, err
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.WriteTo(w)
}

// readTable returns how many entries found no room.
func readTable[K comparable, V any](r io.Reader, now time.Time, t *clienttable.Table[K, V]) (refused int, err error) {
	var n [8]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return 0, err
	}
	size := binary.LittleEndian.Uint64(n[:])
	if size > maxTable {
		return 0, fmt.Errorf("%d bytes, want at most %d", size, uint64(maxTable))
	}
	part := &io.LimitedReader{R: r, N: int64(size)}
	res, err := t.ReadSnapshot(now, part)
	if err != nil {
		return 0, err
	}
	if part.N != 0 {
		return 0, fmt.Errorf("%d bytes too many", part.N)
	}
	return res.Refused, nil
}

func nodeByID(s *snapshot, id uint32) *node {
	for _, n := range s.nodes {
		if uint32(n.id) == id {
			return n
		}
	}
	return nil
}

// store copies an entry with what is left of its life.
func store[K comparable, V, W any](to *clienttable.Table[K, W], from *clienttable.Table[K, V], now time.Time, k K, v W) bool {
	_, info, ok := from.Info(now, k)
	if !ok {
		return true
	}
	_, _, err := to.LoadOrStoreLife(begun(now, info), k, v, info.Life)
	return err == nil
}

// begun is when an entry would have been stored that has so much of its life left.
func begun(now time.Time, info clienttable.Info) time.Time {
	if info.Life.Class == clienttable.Static {
		return now
	}
	return now.Add(info.Left - info.Life.TTL)
}

// ReadFrom is [Plane.Restore] with the number of bytes read. It implements io.ReaderFrom.
func (p *Plane) ReadFrom(r io.Reader) (n int64, err error) {
	c := &countingReader{r: r}
	_, err = p.Restore(c)
	return c.n, err
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// Restore takes over the sessions and associations that [Plane.WriteTo] wrote, as far as their services and
// nodes are still there by name: the Plane's policies and the health of the nodes should be in force
// before. Sessions that are there already stay. A damaged state is refused whole, with an error that wraps
// [ErrSaved].
func (p *Plane) Restore(r io.Reader) (Restored, error) {
	var res Restored
	dict, err := readNames(r)
	if err != nil {
		return res, err
	}
	sessions, err := clienttable.New(&clienttable.Config[clienttable.Flow, savedSession]{MaxEntries: records(p.MaxSessions()), Layout: clienttable.Packed})
	if err != nil {
		return res, err
	}
	defer sessions.Close()
	assocs, err := clienttable.New(&clienttable.Config[clienttable.Association, savedBinding]{MaxEntries: p.MaxAssociations(), Layout: clienttable.Packed})
	if err != nil {
		return res, err
	}
	defer assocs.Close()
	now := time.Now()
	noRoom, err := readTable(r, now, sessions)
	if err != nil {
		return res, fmt.Errorf("%w: sessions: %w", ErrSaved, err)
	}
	more, err := readTable(r, now, assocs)
	if err != nil {
		return res, fmt.Errorf("%w: associations: %w", ErrSaved, err)
	}
	kepts, err := newSavedKepts(records(p.MaxSessions()))
	if err != nil {
		return res, err
	}
	defer kepts.close()
	if _, err := readTable(r, now, kepts.relays); err != nil {
		return res, fmt.Errorf("%w: kept connections: %w", ErrSaved, err)
	}
	if _, err := readTable(r, now, kepts.parked); err != nil {
		return res, fmt.Errorf("%w: parked connections: %w", ErrSaved, err)
	}
	res.Refused = noRoom + more
	p.numbers.RLock() // sessions get numbers of snap
	defer p.numbers.RUnlock()
	snap := p.snap.Load()
	find := func(service, nodeNo uint32) (*place, bool) {
		if int(service) >= len(dict.Services) || int(nodeNo) >= len(dict.Nodes) {
			return nil, false
		}
		return snap.find(dict.Services[service], dict.Nodes[nodeNo])
	}
	parked := kepts.parkedOf(now, find)
	for k, v := range sessions.AllAt(now) {
		f, ok := find(v.service, v.nodeNo)
		_, info, alive := sessions.Info(now, k)
		if !ok || !alive || !f.node.keep || f.svc.conf.Forward.direct() != (v.flags&asIs != 0) || f.svc.inline != (v.flags&isInline != 0) || addrPort(&v.node).Addr() != f.node.addr.Addr() {
			res.Unknown++
			continue
		}
		var relay *splice.Saved
		if saved, ok := kepts.relays.PeekAt(now, k); ok && v.flags&isDelayed != 0 && f.svc.delay != nil && f.svc.delay.follows() {
			relay = &saved
		}
		if p.restore(now, k, &v, f, info, relay, parked[k], true) {
			res.Sessions++
		} else {
			res.Refused++
		}
	}
	for k, b := range assocs.AllAt(now) {
		f, ok := find(b.service, b.node)
		_, info, alive := assocs.Info(now, k)
		if !ok || !alive {
			res.Unknown++
			continue
		}
		if _, isFarm := k.Farm(); isFarm { // pools have other numbers now; the client's group stays
			k = clienttable.FarmKey(f.node.pool.no, k.Client(), clienttable.Grouping{})
		}
		if _, loaded, err := p.assocs().LoadOrStoreLife(begun(now, info), k, binding{node: uint32(f.node.id), service: f.svc.no}, info.Life); err == nil && !loaded {
			res.Associations++
		} else {
			res.Refused++
		}
	}
	return res, nil
}

// savedBinding is a binding as it is saved, by the numbers of the saved names.
type savedBinding struct{ node, service uint32 }

// place is a service with one of its nodes.
type place struct {
	svc  *service
	node *node
}

// find returns the service in force and the node of these names.
func (s *snapshot) find(service string, of [2]string) (*place, bool) {
	for svc := range s.named() {
		if svc.conf.Name != service || !svc.live || svc.pool.Pool == nil && !svc.inline {
			continue
		}
		if svc.inline {
			id, ok := svc.pool.inter.conf.Engine.ID(of[1])
			if n := s.byID[id]; ok && n != nil && !n.gone {
				return &place{svc, n}, true
			}
			continue
		}
		for q := range svc.conf.all {
			id, ok := q.ID(of[1])
			if n := s.byID[id]; ok && n != nil && !n.gone {
				return &place{svc, n}, true
			}
		}
	}
	return nil, false
}

// restore puts one session into the table. relay and parked are those of a connection whose requests are judged. wait says that it may wait for
// the batches under way: its caller is none of them, and looks at no record.
func (p *Plane) restore(now time.Time, k clienttable.Flow, v *savedSession, f *place, info clienttable.Info, relay *splice.Saved, parked []parkedEnd, wait bool) bool {
	at, ok := p.slab.alloc(v.flags&oneWay == 0)
	if !ok && wait {
		p.slab.recycle(p.quiesce) // those that were refused before had one, too
		at, ok = p.slab.alloc(v.flags&oneWay == 0)
	}
	if !ok {
		return false
	}
	rec := &p.slab.recs[at]
	rec.vip, rec.node, rec.local, rec.client = endOf(k.Dst()), v.node, v.local, endOf(k.Src())
	rec.flags, rec.nodeNo, rec.service, rec.way, rec.tcp = v.flags&(isTCP|isSCTP|hasLocal|oneWay|isDelayed|isInline|isExported), f.node.no, f.svc.no, f.svc.way, v.tcp
	rec.aged.Store(0)
	rec.accel.Store(0)
	rec.setCounts(p.tick(now.Add(-v.age)), v.counts)
	if rec.flags&isDelayed != 0 {
		rec.restoreSeam(v.seam)
		if relay != nil {
			rec.seam.stage.Store(replaying)
		}
	}
	rec.alive[toNode].Store(p.tick(now))
	rec.alive[toClient].Store(p.tick(now))
	rec.entries.Store(1)
	if !f.node.pool.adopt(f.node.id) {
		p.slab.giveBack(at)
		return false
	}
	start := begun(now, info)
	back := rec.other(k.Protocol(), toNode)
	if rec.flags&oneWay == 0 {
		rec.entries.Store(2) // see Worker.store
		long := clienttable.Life{TTL: info.Life.TTL + info.Life.TTL/touchShare, Fixed: info.Life.Fixed, Class: info.Life.Class}
		if _, taken, err := p.sessions().LoadOrStoreLife(start, back, ref{at<<1 | toClient, uint32(f.node.id)}, long); taken || err != nil {
			p.slab.giveBack(at)
			f.node.pool.giveBack(k, f.node.id)
			return false
		}
	}
	if _, taken, err := p.sessions().LoadOrStoreLife(start, k, ref{at<<1 | toNode, uint32(f.node.id)}, info.Life); taken || err != nil {
		f.node.pool.giveBack(k, f.node.id)
		if rec.flags&oneWay == 0 {
			p.sessions().Delete(back)
		}
		if rec.entries.Add(-1) == 0 {
			p.slab.giveBack(at)
		}
		return false
	}
	if relay != nil && !p.restoreKept(now, k, at, f, relay, parked) {
		p.sessions().Delete(k)
		return false
	}
	p.lost.begun(now, k)
	p.announce(k, rec, f.svc, f.node)
	return true
}

func readNames(r io.Reader) (dict names, err error) {
	refuse := func(format string, args ...any) (names, error) {
		return names{}, fmt.Errorf("%w: "+format, append([]any{ErrSaved}, args...)...)
	}
	head := make([]byte, 16)
	if _, err := io.ReadFull(r, head); err != nil {
		return refuse("header: %w", err)
	}
	if string(head[:8]) != saveMagic {
		return refuse("begins with %q, want %q", head[:8], saveMagic)
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != saveVersion {
		return refuse("version %d, want %d", v, saveVersion)
	}
	n := binary.LittleEndian.Uint32(head[12:])
	if n > maxNames {
		return refuse("%d bytes of names, want at most %d", n, maxNames)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(n)+4))
	if err != nil {
		return refuse("names: %w", err)
	}
	if len(body) != int(n)+4 {
		return refuse("names end after %d of %d bytes", len(body), n)
	}
	if sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body[:n]); sum != binary.LittleEndian.Uint32(body[n:]) {
		return refuse("names have a wrong checksum")
	}
	if err := json.Unmarshal(body[:n], &dict); err != nil {
		return refuse("names: %w", err)
	}
	return dict, nil
}
