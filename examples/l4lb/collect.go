package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// version is that of the module, or of the revision it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version
}

func count(c dataplane.Count) countReply { return countReply{c.Packets, c.Octets} }

func traffic(t dataplane.Traffic) trafficReply {
	return trafficReply{count(t.In), count(t.Out), t.Sessions, t.Refused}
}

// status collects what there is to know.
func (in *instance) status() *statusReply {
	in.mu.Lock()
	c, ps, wish := in.conf, in.pools, maps.Clone(in.wishes)
	r := &statusReply{
		Version: version(), PID: os.Getpid(), Started: in.started, Now: time.Now(), Draining: in.draining,
		Config: configReply{File: in.file, Loaded: in.loaded, Reloads: in.reloads, Refused: in.refused, Error: in.reloadError},
		Device: deviceReply{Type: c.Device.Type, Interfaces: c.Device.Interfaces, Queues: max(1, c.Device.Queues)},
	}
	in.mu.Unlock()
	if c.Device.Type == tunDevice {
		r.Device.Name = c.Device.name()
	}
	r.Totals = in.totals()
	fl := in.plane.FlowStats()
	r.Flows = flowsReply{fl.Reported, fl.Lost, fl.Failed}
	usable := in.farms(r, c, ps, wish)
	byName := map[string]dataplane.Traffic{}
	for name, t := range in.plane.Services() {
		byName[name] = t
	}
	serving := false
	for _, s := range c.Services {
		fm := c.Farms[s.Farm]
		r.Services = append(r.Services, serviceReply{
			Name: s.Name, Match: s.match().String(), Farm: s.Farm, Disabled: s.Disabled, Usable: usable[s.Farm], Nodes: len(fm.Nodes),
			Forward: fm.Forward, Mode: fm.Mode, Traffic: traffic(byName[s.Name]),
		})
		switch n := usable[s.Farm]; {
		case s.Disabled:
		case n == 0:
			r.Warnings = append(r.Warnings, fmt.Sprintf("service %s has no usable node", s.Name))
		case n < s.MinNodes:
			r.Warnings = append(r.Warnings, fmt.Sprintf("service %s takes no new sessions: of its nodes, %d can be used, and %d must be", s.Name, n, s.MinNodes))
		default:
			serving = true
		}
	}
	r.Ready = serving && !r.Draining
	for _, name := range slices.Sorted(maps.Keys(c.Elements)) {
		e := elementReply{Name: name, Target: c.Elements[name].Target.String()}
		e.Health = in.element(name)
		r.Elements = append(r.Elements, e)
	}
	for reason, n := range in.plane.Drops() {
		r.Drops = append(r.Drops, dropReply{reason, n})
	}
	slices.SortFunc(r.Drops, func(a, b dropReply) int { return cmp.Compare(b.Packets, a.Packets) })
	if r.Config.Error != "" {
		r.Warnings = append(r.Warnings, "the last reload was refused: "+r.Config.Error)
	}
	if r.Draining {
		r.Warnings = append(r.Warnings, "the balancer takes no new sessions")
	}
	if m := r.Totals.MaxSessions; r.Totals.Sessions > m-m/8 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d of %d sessions are in use", r.Totals.Sessions, m))
	}
	return r
}

func (in *instance) totals() totalsReply {
	st := in.plane.Stats()
	return totalsReply{
		Read: count(st.Read), Written: count(st.Written), Passed: st.Passed, Dropped: st.Dropped,
		Sessions: st.Sessions, MaxSessions: st.MaxSessions, Associations: st.Associations, MaxAssociations: st.MaxAssociations,
		Resets: st.Resets, Pings: st.Pings, ICMPErrors: st.Errors, Reselected: st.Reselected, Translated: st.Translated, Clamped: st.Clamped,
	}
}

// farms fills in the farms, and returns how many nodes of each are usable.
func (in *instance) farms(r *statusReply, c *config, ps *pools, wish wishes) (usable map[string]int) {
	byID := map[steering.NodeID]dataplane.Traffic{}
	for id, n := range in.plane.Nodes() {
		byID[id] = n.Traffic
	}
	usable = map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		fm, pool := c.Farms[name], ps.byFarm[name]
		reply := farmReply{Name: name, Metric: fm.Metric}
		sum := uint64(0)
		for _, n := range fm.Nodes {
			full := nodeName(name, n.Name)
			id, ok := pool.ID(full)
			st, ok2 := pool.Status(id)
			if !ok || !ok2 {
				continue // between two configurations
			}
			_, asked := wish[full]
			x := nodeReply{
				Name: n.Name, Address: n.Address.String(), State: st.State, Up: st.Up, Admin: st.Node.Admin, Asked: asked, Backup: n.Backup,
				Weight: max(0, cmp.Or(st.Node.Weight, 1)), Share: st.Share, Warmth: st.Warmth, Pressure: st.Pressure, Sessions: st.Sessions,
				Response: st.ResponseTime.Seconds(), Traffic: traffic(byID[id]), Health: in.health(fm, full),
			}
			said := in.agentOf(full)
			x.Max = limit(&st)
			x.Agent = agentText(said)
			x.Reason = in.reason(&x, full, said)
			if st.State == steering.Available {
				reply.Usable++
			}
			sum += x.Traffic.Sessions
			reply.Nodes = append(reply.Nodes, x)
		}
		for i := range reply.Nodes {
			if sum > 0 {
				reply.Nodes[i].Got = float64(reply.Nodes[i].Traffic.Sessions) / float64(sum)
			}
		}
		usable[name] = reply.Usable
		r.Farms = append(r.Farms, reply)
	}
	return usable
}

// health is what decides about a node found.
func (in *instance) health(fm *farm, full string) (h healthReply) {
	if fm.Check != nil {
		h = in.element(full)
	}
	p, ok := in.roster.Port(full, nodePort)
	if !ok || !fm.checked() && fm.Agent == nil {
		return h
	}
	h.Checked, h.State, h.Since, h.By = true, p.State, p.Since, p.By
	if p.Err != nil && !p.State.Usable() {
		h.Note = p.Err.Error()
	}
	return h
}

// element is what the check of an element found.
func (in *instance) element(name string) healthReply {
	st, ok := in.roster.Monitor().Status("element:" + name)
	if !ok {
		return healthReply{}
	}
	h := healthReply{Checked: true, State: st.State, Since: st.Since, Last: st.LastProbe, Latency: st.Latency.Seconds(), Probes: st.Probes, Failures: st.Failures, Note: st.Note}
	if st.Err != nil {
		h.Note = st.Err.Error()
	}
	return h
}

// agentText is what an agent asks for, for people.
func agentText(a healthcheck.AgentReport) string {
	var words []string
	if a.HasWeight {
		words = append(words, fmt.Sprintf("%d %% of the weight", a.Weight))
	}
	if a.HasMaxConn {
		words = append(words, fmt.Sprintf("at most %d sessions", a.MaxConn))
	}
	if a.Admin == healthcheck.AgentDrain || a.Admin == healthcheck.AgentMaint {
		words = append(words, a.Admin.String())
	}
	if a.Verdict == healthcheck.Fail {
		words = append(words, strings.TrimSpace("down "+a.Reason))
	}
	return strings.Join(words, ", ")
}

// reason says why a node is in its state.
func (in *instance) reason(n *nodeReply, full string, said healthcheck.AgentReport) string {
	who := "the file says so"
	switch {
	case n.Admin == steering.Enabled && (said.Admin == healthcheck.AgentDrain || said.Admin == healthcheck.AgentMaint):
		who = "its agent says " + said.Admin.String()
	case n.Admin == steering.Enabled && said.HasMaxConn && said.MaxConn == 0:
		who = "its agent says at most 0 sessions"
	case n.Asked:
		who = "asked over the admin interface"
	}
	switch n.State {
	case steering.Available:
		if n.Health.State == healthcheck.Suspect {
			return "its last check failed: " + n.Health.Note
		}
		if n.Warmth < 1 {
			return fmt.Sprintf("slow start, at %.0f %% of its share", 100*n.Warmth)
		}
		if n.Pressure != steering.Normal {
			return fmt.Sprintf("%v pressure halves its weight: %s", n.Pressure, pressed(n))
		}
		if n.Health.Checked {
			return "its check passes"
		}
		return "not checked"
	case steering.DownNow:
		switch {
		case said.Admin == healthcheck.AgentMaint:
			return "its agent says maint"
		case said.Verdict == healthcheck.Fail:
			return strings.TrimSpace("its agent says down " + said.Reason)
		}
		text, err := in.roster.Explain(full, nodePort)
		switch {
		case err != nil:
			return "its check has failed"
		case n.Health.State != healthcheck.Failed && n.Health.Note == "":
			return "no check has passed yet"
		case strings.HasPrefix(n.Health.By, "element "):
			return "its check fails: " + n.Health.Note
		}
		if _, why, ok := strings.Cut(text, "; "); ok {
			return why
		}
		return text
	case steering.AdminDraining:
		return "keeps its sessions and gets no new one: " + who
	case steering.AdminSessionsShutdown:
		return "gets no new clients: " + who
	case steering.AdminDisabled:
		return "gets nothing: " + who
	case steering.WeightIsZero:
		if said.HasWeight && said.Weight == 0 {
			return "its agent says 0 %"
		}
		return "its weight is 0"
	case steering.Recovering:
		return "came up a short while ago"
	case steering.UnderSeverePressure:
		return "under severe pressure: " + pressed(n)
	case steering.AtLimit:
		return fmt.Sprintf("has %d of %d sessions", n.Sessions, n.Max)
	}
	return n.State.String()
}
