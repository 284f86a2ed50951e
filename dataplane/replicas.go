package dataplane

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// A Replica is a table of the Plane's that another balancer can follow, so that it can take over with what clients are bound to. It is what
// steering/cluster calls by the same name. Nodes and services go by their names: what has no such name there is left out.
type Replica interface {
	// LastSeq returns the number of the last change.
	LastSeq() uint64
	// AppendChanges appends the changes after a number to b, up to about limit bytes, and returns the number of the last one. The error says
	// that they are not remembered any more.
	AppendChanges(b []byte, after uint64, limit int) (out []byte, last uint64, err error)
	// Apply makes changes of another Plane's. They do not come out of AppendChanges again.
	Apply(b []byte) error
	// Snapshot writes all that is there, and Restore takes it.
	Snapshot(w io.Writer) error
	Restore(r io.Reader) error
}

// Replicas returns the tables that other Planes can follow, by names that are the same at all of them: "associations" (with
// Config.AssociationChanges), and for each sslpersist.Farm of a Delay with a Feed "tls-ids NAME", with tickets "tls-keys NAME", and with client
// addresses "tls-addrs NAME". NAME is that of its Settings, or else that of the first of its services in the order of the alphabet; a farm with a name
// goes on being followed while services are added at one balancer after the other. Those of services that Apply brings later are not among them.
func (p *Plane) Replicas() map[string]Replica {
	all := make(map[string]Replica)
	if p.cfg.AssociationChanges > 0 {
		all["associations"] = followed{p}
	}
	seen := make(map[*sslpersist.Farm[steering.NodeID]]string)
	for svc := range p.snap.Load().named() {
		if !svc.live || svc.delay == nil || svc.delay.Sessions == nil {
			continue
		}
		if was, ok := seen[svc.delay.Sessions]; !ok || svc.conf.Name < was {
			seen[svc.delay.Sessions] = svc.conf.Name
		}
	}
	for farm, name := range seen {
		name = cmp.Or(farm.Name(), name)
		all["tls-ids "+name] = p.feedOf(farm.IDs())
		if farm.Keys() != nil {
			all["tls-keys "+name] = p.feedOf(farm.Keys())
		}
		if farm.Addrs() != nil {
			all["tls-addrs "+name] = p.feedOf(farm.Addrs())
		}
	}
	return all
}

func (p *Plane) feedOf(t sslpersist.Followed[steering.NodeID]) Replica {
	return &sslpersist.Feed[steering.NodeID]{Table: t, Name: p.nameOf, ByName: p.byName}
}

// nameOf names a node for other Planes: by labels of its pool, as pools may have nodes of the same name, and its own name:
//
//	service | farm | node | further labels of the pool
func (p *Plane) nameOf(id steering.NodeID) string {
	s := p.snap.Load()
	n := s.byID[id]
	if n == nil {
		return ""
	}
	labels := s.labels()[n.pool.no]
	if len(labels) == 0 {
		return ""
	}
	return labelText(labels, n.name)
}

// labelText is the first label, some other names, and the further labels, with zero bytes in between.
func labelText(labels []farmLabel, names ...string) string {
	var first farmLabel
	if len(labels) > 0 {
		first, labels = labels[0], labels[1:]
	}
	parts := append([]string{first.service, first.farm}, names...)
	for _, l := range labels {
		parts = append(parts, l.service, l.farm)
	}
	return strings.Join(parts, "\x00")
}

// parseLabels is the reverse of labelText with n names.
func parseLabels(text string, n int) (labels []farmLabel, names []string, ok bool) {
	parts := strings.Split(text, "\x00")
	if len(parts) < 2+n || len(parts)%2 != n%2 {
		return nil, nil, false
	}
	labels, names = append(labels, farmLabel{parts[0], parts[1]}), parts[2:2+n]
	for parts = parts[2+n:]; len(parts) > 0; parts = parts[2:] {
		labels = append(labels, farmLabel{parts[0], parts[1]})
	}
	return labels, names, true
}

func (p *Plane) byName(name string) (steering.NodeID, bool) {
	labels, names, ok := parseLabels(name, 1)
	if !ok {
		return 0, false
	}
	q, _, ok := p.snap.Load().farm(labels)
	if !ok {
		return 0, false
	}
	return q.ID(names[0])
}

// farmLabel names a pool for other Planes: by a service that uses it, and the farm of Delay.Farms that it is there, if any.
type farmLabel struct{ service, farm string }

func (l farmLabel) compare(o farmLabel) int {
	return cmp.Or(cmp.Compare(l.service, o.service), cmp.Compare(l.farm, o.farm))
}

// maxLabels bounds the labels of a pool, of which one that the other Plane knows, too, is enough: it may have another configuration for a
// while.
const maxLabels = 4

// farmLabels returns the first labels of pools in the order of the alphabet, by number.
func farmLabels(services []*service) map[uint32][]farmLabel {
	labels := make(map[uint32][]farmLabel)
	for _, svc := range services {
		if svc == nil || !svc.live {
			continue
		}
		add := func(q *pool, farm string) {
			l := farmLabel{svc.conf.Name, farm}
			all := labels[q.no]
			at, _ := slices.BinarySearchFunc(all, l, farmLabel.compare)
			if all = slices.Insert(all, at, l); len(all) > maxLabels {
				all = all[:maxLabels]
			}
			labels[q.no] = all
		}
		if svc.pool != nil {
			add(svc.pool, "")
		}
		if svc.delay != nil {
			for name, q := range svc.delay.farms {
				add(q, name)
			}
		}
	}
	return labels
}

// farm returns the pool that has the first of some labels that is known here, and the service of that label.
func (s *snapshot) farm(labels []farmLabel) (*pool, *service, bool) {
	for _, l := range labels {
		for svc := range s.named() {
			if !svc.live || svc.conf.Name != l.service {
				continue
			}
			if l.farm == "" {
				if svc.pool.Pool != nil {
					return svc.pool, svc, true
				}
			} else if svc.delay != nil && svc.delay.farms[l.farm] != nil {
				return svc.delay.farms[l.farm], svc, true
			}
		}
	}
	return nil, nil, false
}

// followAssociations makes the feed of the associations. What their numbers stand for is told by names:
//
//	the farm's service | its farm there | service | node | further labels of the farm
//
// Of two balancers that bind a client at once, both come to what was bound later.
func (p *Plane) followAssociations() *clienttable.Feed[clienttable.Association, binding] {
	return &clienttable.Feed[clienttable.Association, binding]{
		Table: p.assocs(),
		Name: func(k clienttable.Association, b binding) string {
			s := p.snap.Load()
			var labels []farmLabel
			if no, ok := k.Farm(); ok {
				labels = s.labels()[no]
			}
			var svc, node string
			if n := s.byID[steering.NodeID(b.node)]; b.node != 0 && n != nil && p.names(s, k, b) {
				svc, node = s.services[b.service].conf.Name, n.name
			}
			return labelText(labels, svc, node)
		},
		Bind: func(k clienttable.Association, b binding, name string) (clienttable.Association, binding, bool) {
			labels, names, ok := parseLabels(name, 2)
			if !ok {
				return k, b, false
			}
			s := p.snap.Load()
			var q *pool
			var svc *service
			if _, ok := k.Farm(); ok {
				if q, svc, ok = s.farm(labels); !ok {
					return k, b, false
				}
				k = clienttable.FarmKey(q.no, k.Client(), clienttable.Grouping{}) // the client's group stays
			}
			if b == (binding{}) {
				return k, b, true // of what is removed there is no more to say
			}
			var id steering.NodeID
			f, ok := s.find(names[0], [2]string{names[0], names[1]})
			switch {
			case q != nil: // other farms of the service may have a node of that name, too
				if id, ok = s.nodeOf(q, names[1]); ok && f != nil {
					svc = f.svc // else the service is not known here, or not any more, and its farm is
				}
			case ok:
				id, svc = f.node.id, f.svc
			}
			if !ok {
				return k, b, false
			}
			return k, binding{uint32(id), svc.no, b.at}, true
		},
		Prefer: func(_ clienttable.Association, here, there binding) bool {
			switch {
			case here.at != there.at:
				return there.at > here.at
			case here.node == there.node:
				return false
			}
			return p.nameOf(steering.NodeID(there.node)) > p.nameOf(steering.NodeID(here.node))
		},
	}
}

// nodeOf returns the node of a pool with a name, if it is in service here.
func (s *snapshot) nodeOf(q *pool, name string) (steering.NodeID, bool) {
	id, ok := q.ID(name)
	n := s.byID[id]
	return id, ok && n != nil && !n.gone
}
