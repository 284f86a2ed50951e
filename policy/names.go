package policy

import (
	"hash/maphash"
	"maps"
)

// names finds rules by name. Like vips it is persistent: a change copies one small map.
type names[V any] struct {
	seed   maphash.Seed
	shards []map[string]*Rule[V]
}

const namesPerShard = 64

func newNames[V any](n int) names[V] {
	shards := 1
	for shards*namesPerShard < n {
		shards *= 2
	}
	return names[V]{maphash.MakeSeed(), make([]map[string]*Rule[V], shards)}
}

func (n *names[V]) shard(name string) *map[string]*Rule[V] {
	return &n.shards[maphash.String(n.seed, name)&uint64(len(n.shards)-1)]
}

// find returns the rule of a name, or nil.
func (n *names[V]) find(name string) *Rule[V] {
	if len(n.shards) == 0 {
		return nil
	}
	return (*n.shard(name))[name]
}

// insert adds a rule, or returns the one that has its name. The shard is changed in
// place: it must not be shared.
func (n *names[V]) insert(r *Rule[V]) (other *Rule[V]) {
	m := n.shard(r.Name)
	if other = (*m)[r.Name]; other != nil {
		return other
	}
	if *m == nil {
		*m = make(map[string]*Rule[V])
	}
	(*m)[r.Name] = r
	return nil
}

//nolint:unused // the next change uses it
// own makes a copy of the shard of a name, unless it was done before.
func (n *names[V]) own(name string, owned map[*map[string]*Rule[V]]bool) {
	if m := n.shard(name); !owned[m] {
		*m = maps.Clone(*m)
		owned[m] = true
	}
}
