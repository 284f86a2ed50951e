package cluster

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// What members tell of themselves by memberlist, in at most 512 bytes:
//
//	"lb" | oldest version 1 | newest version 1 | epoch 8 | digest of settings 16 | of advisory ones 16
const (
	metaMagic = "lb"
	metaSize  = 2 + 2 + 8 + 16 + 16
)

type digest [16]byte

type meta struct {
	oldest, newest     uint8
	epoch              uint64
	settings, advisory digest
}

func (m *meta) append(b []byte) []byte {
	b = append(append(b, metaMagic...), m.oldest, m.newest)
	b = binary.BigEndian.AppendUint64(b, m.epoch)
	return append(append(b, m.settings[:]...), m.advisory[:]...)
}

var errMeta = errors.New("cluster: not what a member tells of itself")

// parseMeta takes more than it knows, from later versions.
func parseMeta(b []byte) (m meta, err error) {
	if len(b) < metaSize || string(b[:2]) != metaMagic {
		return m, errMeta
	}
	m.oldest, m.newest = b[2], b[3]
	m.epoch = binary.BigEndian.Uint64(b[4:])
	copy(m.settings[:], b[12:])
	copy(m.advisory[:], b[28:])
	return m, nil
}

// whereabouts is where a member was last. memberlist does not say whether it left or was lost.
type whereabouts struct {
	addr  string
	epoch uint64
	since time.Time
}

// member is what is known of another member.
type member struct {
	meta
	name     string
	addr     string
	past     uint64     // epoch of the life before, higher if its clock was set back; 0 if none is known
	compared comparison // settings it was sent
}

func (m *member) id() flowshare.Member { return flowshare.Member{Name: m.name, Epoch: m.epoch} }

// NotifyAlive implements memberlist.AliveDelegate: who does not fit is no member.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	c := d.c
	m, err := parseMeta(n.Meta)
	if err == nil && (n.Name == "" || len(n.Name) > maxNodeName) {
		err = errMeta
	}
	if err == nil && n.Name != c.cfg.Node {
		if _, ok := agree(c.oldest, c.newest, m.oldest, m.newest); !ok {
			err = errors.New("cluster: " + n.Name + " speaks no version of the protocol that is known here")
		}
	}
	if err != nil {
		c.count.refused.Add(1)
	}
	return err
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(n *memberlist.Node) {
	c := d.c
	m, err := parseMeta(n.Meta)
	if err != nil || n.Name == c.cfg.Node {
		return
	}
	c.mu.Lock()
	addr := hostPort(n)
	was, past := comparison{}, c.lost[n.Name].epoch
	if old := c.members[n.Name]; old != nil && old.epoch == m.epoch {
		was, past = old.compared, old.past
	}
	c.members[n.Name] = &member{meta: m, name: n.Name, addr: addr, past: past, compared: was}
	c.lost[n.Name] = whereabouts{addr: addr, epoch: m.epoch}
	c.mu.Unlock()
	c.changed()
}

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.NotifyJoin(n) }

// NotifyLeave implements memberlist.EventDelegate.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	c := d.c
	if n.Name == c.cfg.Node {
		return
	}
	c.mu.Lock()
	delete(c.members, n.Name)
	if w, ok := c.lost[n.Name]; ok {
		w.since = time.Now()
		c.lost[n.Name] = w
	}
	c.mu.Unlock()
	c.changed()
}
