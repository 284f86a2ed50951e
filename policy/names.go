package policy

import (
	"hash/maphash"
	"maps"
	"slices"
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
		*m = make(map[string]*Rule[V], namesPerShard)
	}
	(*m)[r.Name] = r
	return nil
}

// prepareChange makes the list of shards the caller's own, for add more rules. It cuts
// the table anew if it has outgrown its shards.
func (n *names[V]) prepareChange(add int) {
	size := add
	for _, m := range n.shards {
		size += len(m)
	}
	if size <= 4*namesPerShard*len(n.shards) {
		n.shards = slices.Clone(n.shards)
		return
	}
	old := n.shards
	*n = newNames[V](size)
	for _, m := range old {
		for _, r := range m {
			n.insert(r)
		}
	}
}

// own makes the shard of a name the caller's own; the list of shards must be.
func (n *names[V]) own(name string) {
	m := n.shard(name)
	*m = maps.Clone(*m)
}

// remove returns the rule it has taken out, or nil; the list of shards must be the
// caller's own.
func (n *names[V]) remove(name string) *Rule[V] {
	r := n.find(name)
	if r != nil {
		n.own(name)
		delete(*n.shard(name), name)
	}
	return r
}
