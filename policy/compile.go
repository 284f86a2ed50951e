package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Config holds the options of a Table. A nil Config and the zero Config mean the
// defaults.
type Config struct {
	// StrictTier confines the check of client ranges to the tier that matched by
	// protocol and port: if no rule of that [Tier] takes the client, the packet
	// belongs to no service. The default is to go on with the next tier.
	StrictTier bool
}

// maxFaults bounds how many faults one error lists: a configuration can have as many
// as it has pairs of rules.
const maxFaults = 1000

// entry is a rule on its way into a table.
type entry[V any] struct {
	norm  norm
	rule  *Rule[V]
	index int // among the arguments, or -1
}

// Compile builds a table from rules. Their order does not matter and the slice is not
// kept. If rules are invalid, have no name or one name twice, or collide, Compile
// returns no table and every fault as a [*RuleError], joined; after 1,000 faults the
// last says [ErrTooMany].
func Compile[V any](cfg *Config, rules ...Rule[V]) (*Table[V], error) {
	t := &Table[V]{}
	if cfg != nil {
		t.cfg = *cfg
	}
	var faults faults
	t.names = newNames[V](len(rules))
	entries := prepare(&t.names, rules, &faults)
	slices.SortFunc(entries, func(a, b entry[V]) int {
		return cmp.Or(
			compareBool(a.rule.Disabled, b.rule.Disabled),
			compareBool(a.enabledInternal(), b.enabledInternal()),
			compareEntries(a, b),
		)
	})
	counts := make(map[*vips[V]]int)
	for i := range entries {
		if e := &entries[i]; i == 0 || !e.same(&entries[i-1]) {
			counts[t.index(e.rule, e.norm.fam)]++
		}
	}
	members := make(map[*vips[V]][]member[V], len(counts))
	for v, n := range counts {
		members[v] = make([]member[V], 0, n)
	}
	b := builder{strict: t.cfg.StrictTier}
	for len(entries) > 0 {
		first := &entries[0]
		n := 1
		for n < len(entries) && first.same(&entries[n]) {
			n++
		}
		group := entries[:n]
		if !first.rule.Disabled {
			checkGroup(group, &faults)
		}
		if len(faults.list) == 0 {
			v := t.index(first.rule, first.norm.fam)
			members[v] = append(members[v], compileGroup(&b, group))
		}
		entries = entries[n:]
	}
	if err := faults.join(); err != nil {
		return nil, err
	}
	for v, m := range members {
		*v = newVIPs(m)
	}
	t.count = len(rules)
	return t, nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// same reports whether two entries go into one service.
func (e *entry[V]) same(o *entry[V]) bool {
	return e.rule.Disabled == o.rule.Disabled && e.enabledInternal() == o.enabledInternal() &&
		e.norm.compareVIP(&o.norm) == 0
}

func (e *entry[V]) enabledInternal() bool { return e.rule.Internal && !e.rule.Disabled }

// prepare checks each rule on its own and its name against names, to which it is added.
// The rules are copied in normal form.
func prepare[V any](names *names[V], rules []Rule[V], faults *faults) []entry[V] {
	own := slices.Clone(rules)
	entries := make([]entry[V], 0, len(rules))
	var places map[*Rule[V]]int // of the arguments, once one is needed
	for i := range own {
		r := &own[i]
		if r.Name == "" {
			faults.add(&RuleError{Index: i, OtherIndex: -1,
				Err: fmt.Errorf("%w: is empty; want a name that no other rule has", ErrName)})
		} else if other := names.insert(r); other != nil {
			if places == nil {
				places = make(map[*Rule[V]]int, len(own))
				for j := range own {
					places[&own[j]] = j
				}
			}
			e := &RuleError{Name: r.Name, Index: i, Other: other.Name, OtherIndex: -1,
				Err: fmt.Errorf("%w: is taken; want a name that no other rule has", ErrName)}
			if j, ok := places[other]; ok {
				e.OtherIndex = j
			}
			faults.add(e)
		}
		n, err := r.Match.norm()
		if err != nil {
			faults.add(&RuleError{Name: r.Name, Index: i, OtherIndex: -1, Err: err})
			continue
		}
		r.Match = n.match()
		entries = append(entries, entry[V]{n, r, i})
	}
	return entries
}

// checkGroup looks for conflicts among the enabled rules of one VIP.
func checkGroup[V any](group []entry[V], faults *faults) {
	if len(group) < 2 {
		return
	}
	conflicts(groupNorms(nil, group), func(c conflict) bool {
		a, b := group[c.a], group[c.b]
		if a.index < 0 || b.index >= 0 && b.index < a.index {
			a, b = b, a // speak of an argument first, and of the earlier one
		}
		w := a.norm.witness(c.port, c.src)
		w.FromProxy = a.rule.Internal
		return faults.add(&RuleError{
			Name: a.rule.Name, Index: a.index,
			Other: b.rule.Name, OtherIndex: b.index,
			Witness: w, Err: c.err,
		})
	})
}

func groupNorms[V any](norms []norm, group []entry[V]) []norm {
	norms = slices.Grow(norms, len(group))
	for i := range group {
		norms = append(norms, group[i].norm)
	}
	return norms
}

// compileGroup compiles the rules of one VIP, or keeps them together if they are
// disabled.
func compileGroup[V any](b *builder, group []entry[V]) (m member[V]) {
	first := &group[0].norm
	m.svc = &service[V]{vip: first.vip, bits: first.bits, fam: first.fam, rules: make([]*Rule[V], len(group))}
	for i, e := range group {
		m.svc.rules[i] = e.rule
	}
	b.norms = groupNorms(b.norms[:0], group)
	if m.slot.encode(first.fam, b.norms, b.strict) {
		for i, e := range group {
			m.slot.values[i] = e.rule.Value
		}
		return m
	}
	if group[0].rule.Disabled {
		return m
	}
	p, members := b.build(first.fam, b.norms)
	m.svc.prog, m.svc.members = slices.Clone(p), slices.Clone(members)
	m.svc.values = make([]V, len(group))
	for i, e := range group {
		m.svc.values[i] = e.rule.Value
	}
	return m
}

// witness returns a packet that a rule holds, with a given port and source.
func (n *norm) witness(port uint16, src u128) Packet {
	p := Packet{}
	num, isNum := n.proto.Number()
	switch {
	case isNum:
		p.Protocol = num
	case n.proto == Other:
		p.Protocol = 47
	default:
		p.Protocol = 6
	}
	var srcPort uint16
	if packetHasPorts(p.Protocol) {
		srcPort = 40000
	} else {
		port = 0
	}
	p.Src = addrPort(n.fam, src, srcPort)
	p.Dst = addrPort(n.fam, n.vip, port)
	return p
}

// faults collects what is wrong with a configuration.
type faults struct {
	list []*RuleError
	full bool
}

// add reports whether there is room for more.
func (f *faults) add(e *RuleError) bool {
	if len(f.list) == maxFaults {
		f.full = true
		return false
	}
	f.list = append(f.list, e)
	return true
}

// join returns the faults by index, or nil.
func (f *faults) join() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b *RuleError) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.OtherIndex, b.OtherIndex), strings.Compare(a.Other, b.Other))
	})
	errs := make([]error, 0, len(f.list)+1)
	for _, e := range f.list {
		errs = append(errs, e)
	}
	if f.full {
		errs = append(errs, fmt.Errorf("%w: only the first %d found are listed", ErrTooMany, maxFaults))
	}
	return errors.Join(errs...)
}
