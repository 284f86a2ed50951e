package dataplane

import (
	"io"
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
// Config.AssociationChanges), and for each sslpersist.Farm of a Delay with a Feed "tls-ids SERVICE" and, with tickets, "tls-keys SERVICE", after the
// first of its services by name. Those of services that Apply brings later are not among them.
func (p *Plane) Replicas() map[string]Replica {
	all := make(map[string]Replica)
	if p.cfg.AssociationChanges > 0 {
		all["associations"] = p.followed
	}
	seen := make(map[*sslpersist.Farm[steering.NodeID]]string)
	for _, svc := range p.snap.Load().services {
		if !svc.live || svc.delay == nil || svc.delay.Sessions == nil {
			continue
		}
		if was, ok := seen[svc.delay.Sessions]; !ok || svc.conf.Name < was {
			seen[svc.delay.Sessions] = svc.conf.Name
		}
	}
	for farm, service := range seen {
		all["tls-ids "+service] = p.feedOf(farm.IDs())
		if farm.Keys() != nil {
			all["tls-keys "+service] = p.feedOf(farm.Keys())
		}
	}
	return all
}

func (p *Plane) feedOf(t sslpersist.Followed[steering.NodeID]) Replica {
	return &sslpersist.Feed[steering.NodeID]{Table: t, Name: p.nameOf, ByName: p.byName}
}

// nameOf names a node for other Planes: by a service and its own name, as pools may have nodes of the same name.
func (p *Plane) nameOf(id steering.NodeID) string {
	s := p.snap.Load()
	n := s.byID[id]
	if n == nil {
		return ""
	}
	l := s.labels()[n.pool.no]
	return l.service + "\x00" + l.farm + "\x00" + n.name
}

func (p *Plane) byName(name string) (steering.NodeID, bool) {
	parts := strings.Split(name, "\x00")
	if len(parts) != 3 {
		return 0, false
	}
	q, ok := p.snap.Load().farm(parts[0], parts[1])
	if !ok {
		return 0, false
	}
	return q.ID(parts[2])
}

// farmLabel names a pool for other Planes: by the first service in the alphabet that uses it, and the farm of Delay.Farms that it is there, if any.
type farmLabel struct{ service, farm string }

// farmLabels returns the labels of pools, by number.
func farmLabels(services []*service) map[uint32]farmLabel {
	labels := make(map[uint32]farmLabel)
	for _, svc := range services {
		if !svc.live {
			continue
		}
		add := func(q *pool, farm string) {
			if l, ok := labels[q.no]; !ok || svc.conf.Name < l.service || svc.conf.Name == l.service && farm < l.farm {
				labels[q.no] = farmLabel{svc.conf.Name, farm}
			}
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

// farm returns the pool that has a label.
func (s *snapshot) farm(service, farm string) (*pool, bool) {
	for _, svc := range s.services {
		if !svc.live || svc.conf.Name != service {
			continue
		}
		if farm == "" {
			return svc.pool, svc.pool.Pool != nil
		}
		if svc.delay != nil {
			q := svc.delay.farms[farm]
			return q, q != nil
		}
	}
	return nil, false
}

// followAssociations makes the feed of the associations. What their numbers stand for is told by names:
//
//	the farm's service | its farm there | service | node
func (p *Plane) followAssociations() *clienttable.Feed[clienttable.Association, binding] {
	return &clienttable.Feed[clienttable.Association, binding]{
		Table: p.assocs,
		Name: func(k clienttable.Association, b binding) string {
			s := p.snap.Load()
			var parts [4]string
			if no, ok := k.Farm(); ok {
				l := s.labels()[no]
				parts[0], parts[1] = l.service, l.farm
			}
			if n := s.byID[steering.NodeID(b.node)]; b.node != 0 && n != nil && int(b.service) < len(s.services) {
				parts[2], parts[3] = s.services[b.service].conf.Name, n.name
			}
			return strings.Join(parts[:], "\x00")
		},
		Bind: func(k clienttable.Association, b binding, name string) (clienttable.Association, binding, bool) {
			parts := strings.Split(name, "\x00")
			if len(parts) != 4 {
				return k, b, false
			}
			s := p.snap.Load()
			var q *pool
			if _, ok := k.Farm(); ok {
				if q, ok = s.farm(parts[0], parts[1]); !ok {
					return k, b, false
				}
				k = clienttable.FarmKey(q.no, k.Client(), clienttable.Grouping{}) // the client's group stays
			}
			if b == (binding{}) {
				return k, b, true // of what is removed there is no more to say
			}
			f, ok := s.find(parts[2], [2]string{parts[2], parts[3]})
			if !ok {
				return k, b, false
			}
			id := f.node.id
			if q != nil { // other farms of the service may have a node of that name, too
				if id, ok = q.ID(parts[3]); !ok {
					return k, b, false
				}
			}
			return k, binding{uint32(id), f.svc.no}, true
		},
	}
}
