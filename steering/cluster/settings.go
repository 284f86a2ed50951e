package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
)

// maxSettings bounds all settings together, names included.
const maxSettings = 1_000_000

// A Mismatch is a setting that another member has otherwise. It is comparable.
type Mismatch struct {
	Member string // its name
	// Setting is its name. Settings of the Cluster's own begin with "cluster.".
	Setting string
	// Here and There are the values, "" where there is none.
	Here, There string
	// Advisory ones are allowed to differ, and worth a warning.
	Advisory bool
}

// String says it for people.
func (m Mismatch) String() string {
	kind := "mismatch"
	if m.Advisory {
		kind = "warning"
	}
	return fmt.Sprintf("%s: %s is %q here and %q at %s", kind, m.Setting, m.Here, m.There, m.Member)
}

func settingsSize(s map[string]string) (n int) {
	for k, v := range s {
		n += len(k) + len(v) + 8
	}
	return n
}

// validSettings says whether the settings of c, with what the Cluster adds, can be told in one message.
func validSettings(c *Config) error {
	size := settingsSize(c.Settings) + settingsSize(c.Advisory)
	own := settingsSize(ownSettings(c)) - settingsSize(c.Settings)
	if most := min(maxSettings, flowshare.MaxFrame-own-16); size > most {
		return &steering.FieldError{Field: "cluster.Config.Settings", Value: fmt.Sprintf("%d bytes", size), Want: fmt.Sprintf("at most %d with Advisory", most)}
	}
	return nil
}

// ownSettings adds what a Cluster itself must have alike.
func ownSettings(c *Config) map[string]string {
	s := maps.Clone(c.Settings)
	if s == nil {
		s = map[string]string{}
	}
	s["cluster.topology"] = c.Topology.String()
	s["cluster.allow-failure"] = strconv.FormatBool(c.AllowFailure)
	members := slices.Clone(c.Members)
	slices.SortFunc(members, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	text := ""
	for _, m := range members {
		text += fmt.Sprintf("%q/%q ", m.Name, m.Pair)
	}
	s["cluster.members"] = text
	s["cluster.flows.threshold"] = strconv.Itoa(cmp.Or(c.Flows.Threshold, defaultThreshold))
	s["cluster.flows.holders"] = strconv.Itoa(cmp.Or(c.Flows.Holders, defaultHolders))
	return s
}

// appendSettings writes settings in the order of their names:
//
//	count 4 | count × (name 4+n | value 4+n)
func appendSettings(b []byte, s map[string]string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	for _, k := range slices.Sorted(maps.Keys(s)) {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(k))), k...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s[k]))), s[k]...)
	}
	return b
}

var errSettings = errors.New("cluster: malformed settings")

func parseSettings(b []byte) (s map[string]string, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errSettings
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4:]
	if uint64(n)*8 > uint64(len(b)) {
		return nil, nil, errSettings
	}
	text := func() string {
		if err != nil || len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			err = errSettings
			return ""
		}
		n := 4 + int(binary.BigEndian.Uint32(b))
		t := string(b[4:n])
		b = b[n:]
		return t
	}
	s = make(map[string]string, n)
	for range n {
		k := text()
		v := text()
		if err != nil {
			return nil, nil, err
		}
		s[k] = v
	}
	return s, b, nil
}

func digestOf(s map[string]string) (d digest) {
	sum := sha256.Sum256(appendSettings(nil, s))
	copy(d[:], sum[:])
	return d
}

// SetSettings replaces [Config.Settings] and [Config.Advisory] and tells the others.
func (c *Cluster) SetSettings(settings, advisory map[string]string) error {
	cfg := c.cfg
	cfg.Settings, cfg.Advisory = settings, advisory
	if err := validSettings(&cfg); err != nil {
		return err
	}
	c.mu.Lock()
	c.settings = [2]map[string]string{ownSettings(&cfg), maps.Clone(advisory)}
	c.digests = [2]digest{digestOf(c.settings[0]), digestOf(c.settings[1])}
	ml := c.ml
	clear(c.differ)
	for _, m := range c.members {
		m.compared = comparison{}
	}
	c.mu.Unlock()
	c.changed()
	if ml == nil {
		return nil
	}
	return ml.UpdateNode(updateWait)
}

// comparison is the state of settings a member was sent ours for.
type comparison struct{ mine, theirs [2]digest }

// differing sends our settings to those who have others; c.mu is held.
func (c *Cluster) differing() {
	for name, m := range c.members {
		now := comparison{c.digests, [2]digest{m.settings, m.advisory}}
		if now.mine == now.theirs {
			delete(c.differ, name)
			continue
		}
		l := c.links[linkKey{m.id(), classBulk}]
		if m.compared == now || l == nil {
			continue
		}
		b := appendSettings(appendSettings([]byte{bulkSettings}, c.settings[0]), c.settings[1])
		if l.send(b, true) {
			m.compared = now
		}
	}
	for name := range c.differ {
		if c.members[name] == nil {
			delete(c.differ, name)
		}
	}
}

// onSettings compares the settings of another member with ours.
func (c *Cluster) onSettings(from string, b []byte) error {
	must, rest, err := parseSettings(b)
	if err != nil {
		return err
	}
	may, rest, err := parseSettings(rest)
	if err != nil || len(rest) > 0 {
		return errSettings
	}
	c.mu.Lock()
	found := map[Mismatch]bool{}
	for i, theirs := range []map[string]string{must, may} {
		mine := c.settings[i]
		for k, v := range theirs {
			if h, ok := mine[k]; !ok || h != v {
				found[Mismatch{from, k, h, v, i == 1}] = true
			}
		}
		for k, h := range mine {
			if _, ok := theirs[k]; !ok {
				found[Mismatch{from, k, h, "", i == 1}] = true
			}
		}
	}
	before := c.differ[from]
	if c.members[from] != nil {
		c.differ[from] = found
	}
	c.mu.Unlock()
	for _, m := range sortedMismatches(found) {
		if before[m] {
			continue
		}
		c.log.Warn("configuration differs", "member", m.Member, "setting", m.Setting, "here", m.Here, "there", m.There, "advisory", m.Advisory)
		if c.cfg.OnMismatch != nil {
			c.tell(func() { c.cfg.OnMismatch(m) })
		}
	}
	return nil
}

func sortedMismatches(ms map[Mismatch]bool) []Mismatch {
	return slices.SortedFunc(maps.Keys(ms), func(a, b Mismatch) int {
		return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.Setting, b.Setting))
	})
}

// Mismatches returns what other members have otherwise, as far as they have told.
func (c *Cluster) Mismatches() (ms []Mismatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.differ)) {
		ms = append(ms, sortedMismatches(c.differ[name])...)
	}
	return ms
}

// InterceptSettings returns the settings of cfg that all members must have alike: nodes, rules and how flows are
// spread; and those where a difference is worth a warning: what the rows of the network
// services table match. Their targets may differ and are in neither.
func InterceptSettings(cfg *intercept.Config) (settings, advisory map[string]string) {
	settings, advisory = map[string]string{}, map[string]string{}
	if cfg == nil {
		return settings, advisory
	}
	for _, n := range cfg.Nodes {
		settings["intercept.node "+n.Name] = fmt.Sprintf("%v weight %d capacity %d sessions %d %s", n.Addr, n.Weight, n.Capacity, n.MaxSessions, n.Side)
	}
	for i, r := range cfg.InPath {
		settings[fmt.Sprintf("intercept.in-path %04d", i)] = fmt.Sprintf("%q %s %s disabled %v", r.Name, matchText(&r.Match), r.Action, r.Disabled)
	}
	for i, r := range cfg.Rules {
		settings[fmt.Sprintf("intercept.rule %04d", i)] = fmt.Sprintf("%q %s peer %s %v %s targets %q fair %v disabled %v",
			r.Name, matchText(&r.Match), r.Peer, r.Peers, r.Action, r.Targets, r.FairPeering, r.Disabled)
	}
	settings["intercept.spread"] = fmt.Sprintf("fair-peering-v2 %v slack %d path-selection %v allow-failure %v buckets %d seed %d",
		cfg.FairPeeringV2, cfg.Slack, cfg.PathSelection, cfg.AllowFailure, cfg.Buckets, cfg.Seed)
	for i, r := range cfg.Services {
		advisory[fmt.Sprintf("intercept.services %04d", i)] = fmt.Sprintf("%q %v %s to %v %s protocol %d pass-through %v disabled %v",
			r.Name, r.A.Net, r.A.Ports, r.B.Net, r.B.Ports, r.Protocol, r.PassThrough, r.Disabled)
	}
	return settings, advisory
}

func matchText(m *intercept.Match) string {
	return fmt.Sprintf("from %v to %v port %s vlan %d", m.Src, m.Dst, m.DstPort, m.VLAN)
}
