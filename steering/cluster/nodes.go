package cluster

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/hashicorp/memberlist"

	"github.com/lbprim/lbprim/steering"
)

// A NodeReport is what a member knows of a node. It is comparable.
type NodeReport struct {
	Node string // its name
	// Up is whether the member's health checks say so.
	Up bool
	// Pressure is the level the member's readings give.
	Pressure steering.Level
}

// A told NodeReport is one with who said it and in which order.
type told struct {
	by     string
	epoch  uint64
	number uint64
	r      NodeReport
}

// Bounds of what is kept of reports. Reports beyond are not taken, and counted.
const (
	maxReports     = 1 << 16 // in all
	maxReportFrame = 400
)

// Reports are
//
//	by 1+n | epoch 8 | number 8 | node 1+n | up 1 | pressure 1
func (t *told) append(b []byte) []byte {
	b = append(append(b, byte(len(t.by))), t.by...)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, t.epoch), t.number)
	b = append(append(b, byte(len(t.r.Node))), t.r.Node...)
	up := byte(0)
	if t.r.Up {
		up = 1
	}
	return append(b, up, byte(t.r.Pressure))
}

var errReport = errors.New("cluster: not a report of a node")

func parseTold(b []byte) (t told, rest []byte, err error) {
	text := func() (string, bool) {
		if len(b) == 0 || b[0] == 0 || len(b) < 1+int(b[0]) {
			return "", false
		}
		n := 1 + int(b[0])
		s := string(b[1:n])
		b = b[n:]
		return s, true
	}
	var ok bool
	if t.by, ok = text(); !ok || len(b) < 16 {
		return t, nil, errReport
	}
	t.epoch, t.number, b = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), b[16:]
	if t.r.Node, ok = text(); !ok || len(b) < 2 || b[0] > 1 || b[1] > byte(steering.Severe) {
		return t, nil, errReport
	}
	t.r.Up, t.r.Pressure = b[0] == 1, steering.Level(b[1])
	return t, b[2:], nil
}

// reportKey is who says it of which node.
type reportKey struct{ by, node string }

// SetNode tells the other members what this one knows of a node. Nothing is sent if that
// is what it said last.
func (c *Cluster) SetNode(r NodeReport) error {
	if r.Node == "" || len(r.Node) > 200 {
		return &steering.FieldError{Field: "cluster.NodeReport.Node", Value: r.Node, Want: "1 to 200 bytes"}
	}
	if r.Pressure > steering.Severe {
		return &steering.FieldError{Field: "cluster.NodeReport.Pressure", Value: r.Pressure, Want: "a level of steering"}
	}
	c.mu.Lock()
	k := reportKey{c.cfg.Node, r.Node}
	if old := c.reports[k]; old != nil && old.r == r {
		c.mu.Unlock()
		return nil
	}
	c.reportNo++
	t := &told{by: c.cfg.Node, epoch: c.self.Epoch, number: c.reportNo, r: r}
	c.reports[k] = t
	c.mu.Unlock()
	c.gossip.QueueBroadcast(&broadcast{t, t.append(nil)})
	return nil
}

// Nodes returns what the members that are up report of each node, this one included, by
// node and then by member.
func (c *Cluster) Nodes() (reports []MemberReport) {
	c.mu.Lock()
	for k, t := range c.reports {
		if k.by == c.cfg.Node || c.members[k.by] != nil && c.members[k.by].epoch == t.epoch {
			reports = append(reports, MemberReport{t.by, t.r})
		}
	}
	c.mu.Unlock()
	slices.SortFunc(reports, func(a, b MemberReport) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Member, b.Member))
	})
	return reports
}

// A MemberReport is a NodeReport and whose it is.
type MemberReport struct {
	Member string // its name
	NodeReport
}

// hear takes a report, and passes it on if it is news.
func (c *Cluster) hear(t *told) {
	if t.by == c.cfg.Node {
		return
	}
	c.mu.Lock()
	k := reportKey{t.by, t.r.Node}
	old := c.reports[k]
	if old != nil && c.former(old) {
		old = nil
		delete(c.reports, k)
	}
	if c.former(t) || old != nil && (old.epoch > t.epoch || old.epoch == t.epoch && old.number >= t.number) {
		c.mu.Unlock()
		c.count.stale.Add(1)
		return
	}
	if old == nil && len(c.reports) >= maxReports {
		c.mu.Unlock()
		c.count.malformed.Add(1)
		return
	}
	c.reports[k] = t
	c.mu.Unlock()
	c.gossip.QueueBroadcast(&broadcast{t, t.append(nil)})
	if c.cfg.OnNode != nil {
		c.tell(func() { c.cfg.OnNode(t.by, t.r) })
	}
}

// former says whether a report is of the life before of a member: after its clock was set back that has the higher epoch.
// c.mu is held.
func (c *Cluster) former(t *told) bool {
	m := c.members[t.by]
	return m != nil && t.epoch != m.epoch && t.epoch == m.past
}

// forgetReports drops those of members that are gone.
func (c *Cluster) forgetReports() {
	for k, t := range c.reports {
		if m := c.members[k.by]; k.by != c.cfg.Node && (m == nil || m.epoch > t.epoch || c.former(t)) {
			delete(c.reports, k)
		}
	}
}

// A broadcast is a report on its way. A newer one of the same member and node takes its place.
type broadcast struct {
	t *told
	b []byte
}

// Name implements memberlist.NamedBroadcast: without it each report would be compared with all that wait.
func (b *broadcast) Name() string { return b.t.by + "\x00" + b.t.r.Node }

// Invalidates implements memberlist.Broadcast.
func (b *broadcast) Invalidates(o memberlist.Broadcast) bool {
	old, ok := o.(*broadcast)
	return ok && old.t.by == b.t.by && old.t.r.Node == b.t.r.Node
}

// Message implements memberlist.Broadcast.
func (b *broadcast) Message() []byte { return b.b }

// Finished implements memberlist.Broadcast.
func (b *broadcast) Finished() {}

// delegate is what memberlist sees of a Cluster.
type delegate struct{ c *Cluster }

// NodeMeta implements memberlist.Delegate.
func (d *delegate) NodeMeta(int) []byte {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	m := meta{d.c.oldest, d.c.newest, d.c.self.Epoch, d.c.digests[0], d.c.digests[1]}
	return m.append(nil)
}

// NotifyMsg implements memberlist.Delegate.
func (d *delegate) NotifyMsg(b []byte) {
	t, rest, err := parseTold(b)
	if err != nil || len(rest) > 0 || len(b) > 2*maxReportFrame {
		d.c.count.malformed.Add(1)
		return
	}
	d.c.hear(&t)
}

// GetBroadcasts implements memberlist.Delegate.
func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.c.gossip.GetBroadcasts(overhead, limit)
}

// LocalState implements memberlist.Delegate: all reports, in case a broadcast was lost.
func (d *delegate) LocalState(bool) (b []byte) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	for _, t := range d.c.reports {
		b = t.append(b)
	}
	return b
}

// MergeRemoteState implements memberlist.Delegate.
func (d *delegate) MergeRemoteState(b []byte, _ bool) {
	for n := 0; len(b) > 0 && n < maxReports; n++ {
		t, rest, err := parseTold(b)
		if err != nil {
			d.c.count.malformed.Add(1)
			return
		}
		b = rest
		d.c.hear(&t)
	}
}
