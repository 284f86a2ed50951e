package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/clienttable"
)

// share is what a node or a fate got.
type share struct {
	Service string `json:"service,omitempty"`
	Where   string `json:"where"`
	Flows   int    `json:"flows"`
	Packets uint64 `json:"packets"`
	Octets  uint64 `json:"octets"`
}

// shares sums the flows up by service and node.
func (e *engine) shares() (all []*share) {
	index := map[[2]string]*share{}
	for _, f := range e.order {
		k := [2]string{f.Service, f.where()}
		s := index[k]
		if s == nil {
			s = &share{Service: f.Service, Where: f.where()}
			index[k] = s
			all = append(all, s)
		}
		s.Flows++
		s.Packets += f.Packets
		s.Octets += f.Octets
	}
	slices.SortFunc(all, func(a, b *share) int { return strings.Compare(a.Service+"\x00"+a.Where, b.Service+"\x00"+b.Where) })
	return all
}

// report is the JSON form of a replay.
type report struct {
	Configuration string   `json:"configuration"`
	Capture       string   `json:"capture"`
	Unused        []string `json:"unusedKeys,omitempty"`
	Notes         []string `json:"notes,omitempty"`
	Counts        counts   `json:"counts"`
	Shares        []*share `json:"shares"`
	Flows         []*flow  `json:"flows"`
}

func (e *engine) report(capture string, c *config) *report {
	r := &report{Configuration: e.name, Capture: capture, Unused: c.unused(), Notes: c.notes(), Counts: e.counts, Shares: e.shares(), Flows: e.order}
	if r.Flows == nil {
		r.Flows = []*flow{}
	}
	return r
}

func asJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes cells with aligned columns; those of numbers are given by their index.
func table(w io.Writer, cells [][]string, right ...int) error {
	width := make([]int, len(cells[0]))
	for _, c := range cells {
		for i, text := range c {
			width[i] = max(width[i], len([]rune(text)))
		}
	}
	var b bytes.Buffer
	for _, c := range cells {
		line := ""
		for i, text := range c {
			pad := strings.Repeat(" ", width[i]-len([]rune(text)))
			if slices.Contains(right, i) {
				line += pad + text + "  "
			} else {
				line += text + pad + "  "
			}
		}
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r *report) print(w io.Writer, flows int) error {
	if len(r.Unused) > 0 {
		fmt.Fprintf(w, "not looked at: %s\n", strings.Join(r.Unused, ", "))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	c := r.Counts
	fmt.Fprintf(w, "%d packets: %d forwarded, %d passed, %d answered, %d held, %d dropped; %d frames without IP\n\n", c.Packets, c.Forwarded, c.Passed, c.Answered, c.Held, c.Dropped, c.NotIP)
	cells := [][]string{{"SERVICE", "NODE OR FATE", "FLOWS", "PACKETS", "OCTETS"}}
	for _, s := range r.Shares {
		cells = append(cells, []string{s.Service, s.Where, fmt.Sprint(s.Flows), fmt.Sprint(s.Packets), fmt.Sprint(s.Octets)})
	}
	if err := table(w, cells, 2, 3, 4); err != nil {
		return err
	}
	for _, reason := range slices.Sorted(maps.Keys(c.Drops)) {
		fmt.Fprintf(w, "dropped as %s: %d\n", reason, c.Drops[reason])
	}
	if flows == 0 || len(r.Flows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	cells = [][]string{{"PROTOCOL", "CLIENT", "VIP", "SERVICE", "NODE OR FATE", "PACKETS", "OCTETS", "ANSWERS"}}
	for i, f := range r.Flows {
		if flows > 0 && i == flows {
			break
		}
		cells = append(cells, []string{f.Protocol, f.Client.String(), f.VIP.String(), f.Service, f.where(), fmt.Sprint(f.Packets), fmt.Sprint(f.Octets), fmt.Sprint(f.Answers)})
	}
	if err := table(w, cells, 5, 6, 7); err != nil {
		return err
	}
	return more(w, len(r.Flows)-len(cells)+1)
}

// move is a group of flows that go from one place to another.
type move struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Flows   int      `json:"flows"`
	Octets  uint64   `json:"octets"`
	Example string   `json:"example"`
	Clients []string `json:"clients"`
}

// moved is a flow that goes elsewhere.
type moved struct {
	Protocol string         `json:"protocol"`
	Client   netip.AddrPort `json:"client"`
	VIP      netip.AddrPort `json:"vip"`
	From     string         `json:"from"`
	To       string         `json:"to"`
}

// comparison is what changes between two configurations.
type comparison struct {
	Old      string   `json:"old"`
	New      string   `json:"new"`
	OldNotes []string `json:"oldNotes,omitempty"`
	NewNotes []string `json:"newNotes,omitempty"`
	Same     int      `json:"same"`
	Moved    int      `json:"moved"`
	Moves    []*move  `json:"moves"`
	Flows    []moved  `json:"flows"`
}

// compare finds the flows that go elsewhere. Nodes are the same if they have the same name.
func compare(old, next *engine) *comparison {
	c := &comparison{Old: old.name, New: next.name, Moves: []*move{}, Flows: []moved{}}
	index := map[[2]string]*move{}
	one := func(key clienttable.Flow, f, g *flow) {
		if f.where() == g.where() {
			c.Same++
			return
		}
		c.Moved++
		k := [2]string{f.where(), g.where()}
		m := index[k]
		if m == nil {
			m = &move{From: k[0], To: k[1], Example: key.String()}
			index[k] = m
			c.Moves = append(c.Moves, m)
		}
		m.Flows++
		c.Flows = append(c.Flows, moved{protocol(key.Protocol()), key.Src(), key.Dst(), k[0], k[1]})
		m.Clients = append(m.Clients, key.Src().String())
		if g != nil {
			m.Octets += g.Octets
		} else {
			m.Octets += f.Octets
		}
	}
	for _, f := range old.order {
		one(f.key, f, next.flows[f.key])
	}
	for _, g := range next.order {
		if old.flows[g.key] == nil {
			one(g.key, nil, g)
		}
	}
	slices.SortStableFunc(c.Moves, func(a, b *move) int { return b.Flows - a.Flows })
	return c
}

func (c *comparison) print(w io.Writer, flows int) error {
	for _, n := range slices.Concat(c.OldNotes, c.NewNotes) {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	fmt.Fprintf(w, "%d flows stay, %d move\n", c.Same, c.Moved)
	if c.Moved == 0 {
		return nil
	}
	fmt.Fprintln(w)
	cells := [][]string{{"FROM", "TO", "FLOWS", "OCTETS", "SUCH AS"}}
	for _, m := range c.Moves {
		cells = append(cells, []string{m.From, m.To, fmt.Sprint(m.Flows), fmt.Sprint(m.Octets), m.Example})
	}
	if err := table(w, cells, 2, 3); err != nil || flows == 0 {
		return err
	}
	fmt.Fprintln(w)
	cells = [][]string{{"PROTOCOL", "CLIENT", "VIP", "FROM", "TO"}}
	for i, f := range c.Flows {
		if i == flows {
			break
		}
		cells = append(cells, []string{f.Protocol, f.Client.String(), f.VIP.String(), f.From, f.To})
	}
	if err := table(w, cells); err != nil {
		return err
	}
	return more(w, len(c.Flows)-len(cells)+1)
}

// more says how many flows were not listed.
func more(w io.Writer, rest int) error {
	if rest == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "… and %d more; -flows -1 shows all\n", rest)
	return err
}
