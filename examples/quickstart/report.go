package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
)

// report is what the story ends with.
type report struct {
	Mode             string            `json:"mode"`
	Seed             uint64            `json:"seed"`
	Seconds          float64           `json:"seconds"`
	Verified         bool              `json:"verified"`
	Claims           []claim           `json:"claims"`
	Servers          []row             `json:"servers"`
	Requests         int               `json:"requests"`
	Failed           int               `json:"failed"`
	Packets          uint64            `json:"packets"`
	PacketsPerSecond float64           `json:"packetsPerSecond"`
	Tables           tables            `json:"tables"`
	LargestTables    tables            `json:"largestTables"`
	Dropped          map[string]uint64 `json:"dropped,omitempty"`
	Explanation      string            `json:"explanation"`
}

// rows shows the servers as they are now.
func (s *story) rows(requests []request) (rows []row) {
	s.mu.Lock()
	members, since := slices.Clone(s.members), span{from: s.weighed}
	transitions := map[string]int{}
	for name, n := range s.transitions {
		transitions[name] = n
	}
	window := span{s.h.killed, s.h.markedDown}
	s.mu.Unlock()

	recent := tally(requests, func(r request) bool { return r.stream == 0 && (r.service != web || since.holds(r)) })
	ever := tally(requests, func(r request) bool { return r.stream == 0 })
	kept := map[int]string{}
	failed := map[string]int{}
	for _, r := range requests {
		if r.stream != 0 && r.err == nil {
			kept[r.stream] = r.server
		}
		// Who did not answer is only known while one server is dead.
		if r.err != nil && r.service == web && window.touches(r) {
			failed[victim]++
		}
	}
	for _, server := range kept {
		ever[server]++
	}
	total := map[service]int{}
	for _, m := range members {
		total[m.service] += recent[m.name]
	}
	for _, m := range members {
		st := s.b.status(m)
		rows = append(rows, row{
			Server: m.name, Weight: m.weight, Wanted: st.share, Share: part(recent[m.name], total[m.service]),
			Connections: ever[m.name], Failed: failed[m.name], Open: st.open, State: st.state, Transitions: transitions[m.name],
		})
	}
	return rows
}

// draw keeps the display up to date.
func (s *story) draw(quit interface{ Done() <-chan struct{} }) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-quit.Done():
			return
		case <-tick.C:
		}
		requests := s.ledger.all()
		rows := s.rows(requests)
		stats := s.b.plane.Stats()
		now := time.Now()
		f := frame{at: now.Sub(s.start), end: s.opt.duration, rows: rows, tables: tables{stats.Sessions, stats.Associations}}
		for _, r := range requests {
			if r.err != nil {
				f.failed++
			}
		}
		s.mu.Lock()
		if !s.lastFrame.IsZero() {
			f.packets = float64(stats.Read.Packets-s.lastPackets) / now.Sub(s.lastFrame).Seconds()
		}
		s.lastPackets, s.lastFrame = stats.Read.Packets, now
		s.largest.Sessions = max(s.largest.Sessions, f.tables.Sessions)
		s.largest.Associations = max(s.largest.Associations, f.tables.Associations)
		f.phase = s.phase
		s.show.frame(f)
		s.mu.Unlock()
	}
}

// report judges and sums up; the clients have ended, the balancer has not.
func (s *story) report() *report {
	requests := s.ledger.all()
	stats := s.b.plane.Stats()
	took := time.Since(s.start)
	rows := s.rows(requests)
	explanation, err := s.b.explain(protocol(web), netip.AddrPortFrom(lab.ClientAddr(true, 3), 40000), vipOf(web, true))
	if err != nil {
		explanation = err.Error() // cannot be: the addresses are ours
	}
	s.mu.Lock()
	s.h.requests, s.h.corrupt, s.h.offered = requests, s.lab.Corrupt(), 0
	for _, m := range s.members {
		if m.service == web {
			s.h.offered += s.b.status(m).total
		}
	}
	r := &report{
		Mode: s.mode, Seed: s.opt.seed, Seconds: took.Seconds(), Claims: s.h.verify(), Servers: rows,
		Requests: len(requests), Packets: stats.Read.Packets, PacketsPerSecond: float64(stats.Read.Packets) / took.Seconds(),
		Tables: tables{stats.Sessions, stats.Associations}, LargestTables: s.largest,
		Dropped: map[string]uint64{}, Explanation: explanation,
	}
	s.mu.Unlock()
	for _, q := range requests {
		if q.err != nil {
			r.Failed++
		}
	}
	for reason, n := range s.b.plane.Drops() {
		r.Dropped[reason.String()] = n
	}
	r.Verified = !slices.ContainsFunc(r.Claims, func(c claim) bool { return !c.Happened })
	return r
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// text writes the report for people.
func (r *report) text(w io.Writer) {
	fmt.Fprintf(w, "\nserver    weight   share  wanted   conns  failed   open  health changes  state\n")
	for _, s := range r.Servers {
		fmt.Fprintf(w, "%-9s %6d  %5.1f%%  %5.1f%%  %6d  %6d  %5d  %14d  %s\n", s.Server, s.Weight, 100*s.Share, 100*s.Wanted, s.Connections, s.Failed, s.Open, s.Transitions, s.State)
	}
	fmt.Fprintf(w, "\n%d requests, %d failed; %d packets, %.0f a second\n", r.Requests, r.Failed, r.Packets, r.PacketsPerSecond)
	fmt.Fprintf(w, "tables: at most %d sessions and %d remembered clients, now %d and %d\n", r.LargestTables.Sessions, r.LargestTables.Associations, r.Tables.Sessions, r.Tables.Associations)
	if len(r.Dropped) > 0 {
		var drops []string
		for reason, n := range r.Dropped {
			drops = append(drops, fmt.Sprintf("%s %d", reason, n))
		}
		slices.Sort(drops)
		fmt.Fprintf(w, "dropped: %s\n", strings.Join(drops, ", "))
	}
	fmt.Fprintf(w, "\nWhy a packet goes where it goes:\n  %s\n\n", strings.ReplaceAll(r.Explanation, "\n", "\n  "))
	for _, c := range r.Claims {
		mark := "ok    "
		if !c.Happened {
			mark = "FAILED"
		}
		fmt.Fprintf(w, "%s  %s: %s\n", mark, c.Claim, c.Found)
	}
	if r.Verified {
		fmt.Fprintf(w, "\nAll of it really happened, in %.1fs.\n", r.Seconds)
	} else {
		fmt.Fprintf(w, "\nNot all of it happened.\n")
	}
}
