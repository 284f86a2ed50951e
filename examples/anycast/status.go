package main

import (
	"encoding/json"
	"net/http"
	"time"
)

// status is the status page.
type status struct {
	VIPs     []vipStatus  `json:"vips"`
	Routers  []peerStatus `json:"routers"`
	Nodes    []nodeStatus `json:"nodes"`
	Sessions int          `json:"sessions"`
	// TakenOver packets began sessions in the middle of a connection, such as one of another balancer.
	TakenOver uint64            `json:"takenOver"`
	Packets   uint64            `json:"packets"`
	Dropped   map[string]uint64 `json:"dropped"`
}

type vipStatus struct {
	Address    string  `json:"address"`
	Announced  bool    `json:"announced"`
	Suppressed bool    `json:"suppressed"`
	Penalty    float64 `json:"penalty"`
	Why        string  `json:"why"`
}

type nodeStatus struct {
	Name     string `json:"name"`
	Farm     string `json:"farm"`
	State    string `json:"state"`
	Sessions int64  `json:"sessions"`
	Total    uint64 `json:"total"`
}

// sessionStatus is a line of the list of sessions.
type sessionStatus struct {
	Service string `json:"service"`
	Client  string `json:"client"`
	VIP     string `json:"vip"`
	Node    string `json:"node"`
}

func (in *instance) statusPage() http.Handler {
	mux := http.NewServeMux()
	page := func(path string, value func() any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			_ = enc.Encode(value()) // who went away needs no answer
		})
	}
	page("/{$}", func() any { return in.status() })
	page("/sessions", func() any {
		all := []sessionStatus{}
		for s := range in.plane.Sessions() {
			all = append(all, sessionStatus{s.Service, s.Client.String(), s.VIP.String(), s.NodeName})
		}
		return all
	})
	return mux
}

func (in *instance) status() status {
	st := in.plane.Stats()
	out := status{Routers: in.speaker.status(), Sessions: st.Sessions, TakenOver: st.Reselected, Packets: st.Read.Packets, Dropped: map[string]uint64{}}
	for reason, n := range in.plane.Drops() {
		if n > 0 {
			out.Dropped[reason.String()] = n
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	rules, now := in.conf.Damping.rules(), time.Now()
	for _, v := range in.conf.VIPs {
		p := v.Address.Prefix
		s := vipStatus{Address: p.String(), Announced: in.told[p] != "", Why: in.why[p]}
		if r := in.routes[p]; r != nil {
			s.Suppressed, s.Penalty = r.suppressed, r.decayed(rules, now)
		}
		out.VIPs = append(out.VIPs, s)
	}
	for name := range in.conf.Farms {
		for _, n := range in.pools.byFarm[name].All() {
			out.Nodes = append(out.Nodes, nodeStatus{n.Node.Name, name, n.State.String(), n.Sessions, n.Total})
		}
	}
	return out
}
