package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// claim is something the story shows, and whether it really happened.
type claim struct {
	Claim    string `json:"claim"`
	Happened bool   `json:"happened"`
	Found    string `json:"found"` // in figures
}

const (
	tolerance  = 0.05            // of a share, absolute
	fewest     = 40              // connections from which a share is believed
	noticeable = 3 * time.Second // for a death or a return to be noticed
)

// history is what the story remembers of itself, for verification.
type history struct {
	requests []request

	shares1, shares2   span // weights in force
	weights1, weights2 map[string]int

	killed, markedDown, restarted, markedUp time.Time // the web server that dies
	victim                                  string

	drain   span
	drained string
	streams int

	offered uint64 // sessions the pools counted for the web service
	corrupt uint64
}

// verify judges the whole story from what the clients saw.
func (h *history) verify() []claim {
	return []claim{
		h.follow("the web servers' shares follow their weights", h.shares1, h.weights1),
		h.noticed("the death of "+h.victim+" was noticed by its health check", h.killed, h.markedDown),
		h.silent(),
		h.noticed("its return was noticed", h.restarted, h.markedUp),
		h.returned(),
		h.keptStreams(),
		h.drainedQuietly(),
		h.follow("after a change of weights the shares follow the new ones", h.shares2, h.weights2),
		h.persistent(),
		h.echoed(),
		h.families(),
		h.nothingFailed(),
		h.books(),
	}
}

// announced is the time in which requests to the killed server may fail: from its death until it
// is marked down, and what was under way then.
func (h *history) announced() span { return span{h.killed, h.markedDown} }

func (h *history) follow(text string, when span, weights map[string]int) claim {
	counts := tally(h.requests, func(r request) bool { return r.service == web && r.stream == 0 && when.holds(r) })
	total, sum := 0, 0
	for _, n := range counts {
		total += n
	}
	for _, w := range weights {
		sum += w
	}
	c := claim{Claim: text, Happened: total >= fewest && sum > 0}
	var found []string
	for _, server := range slices.Sorted(maps.Keys(weights)) {
		share, wanted := part(counts[server], total), part(weights[server], sum)
		found = append(found, fmt.Sprintf("%s %.1f%% of %.1f%%", server, 100*share, 100*wanted))
		if math.Abs(share-wanted) > tolerance {
			c.Happened = false
		}
		delete(counts, server)
	}
	if len(counts) > 0 {
		c.Happened = false
		found = append(found, fmt.Sprintf("and others: %v", counts))
	}
	c.Found = fmt.Sprintf("%s (%d connections)", strings.Join(found, ", "), total)
	return c
}

func part(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func (h *history) noticed(text string, what, when time.Time) claim {
	if what.IsZero() || when.IsZero() || when.Before(what) {
		return claim{Claim: text, Found: "it was not"}
	}
	d := when.Sub(what)
	return claim{Claim: text, Happened: d <= noticeable, Found: fmt.Sprintf("after %.2fs", d.Seconds())}
}

// silent: a dead server gets nobody.
func (h *history) silent() claim {
	dead := span{h.markedDown, h.restarted}
	c := claim{Claim: "meanwhile its clients went to the other servers"}
	counts := tally(h.requests, func(r request) bool { return r.service == web && r.stream == 0 && dead.covers(r) })
	others := 0
	for server, n := range counts {
		if server != h.victim {
			others += n
		}
	}
	c.Happened = counts[h.victim] == 0 && others > 0 && !dead.from.IsZero() && !dead.to.IsZero()
	c.Found = fmt.Sprintf("%d connections, none of them to %s", others, h.victim)
	if counts[h.victim] > 0 {
		c.Found = fmt.Sprintf("%d connections to %s, which was dead", counts[h.victim], h.victim)
	}
	return c
}

func (h *history) returned() claim {
	c := claim{Claim: "after its return it served again, in both families"}
	up := span{from: h.markedUp}
	var v4, v6 int
	for _, r := range h.requests {
		if r.err == nil && r.service == web && r.server == h.victim && up.holds(r) {
			if r.v6 {
				v6++
			} else {
				v4++
			}
		}
	}
	c.Happened = v4 > 0 && v6 > 0
	c.Found = fmt.Sprintf("%d connections by IPv4, %d by IPv6", v4, v6)
	return c
}

// keptStreams: each of the connections that were open when the drain began went on to its end.
func (h *history) keptStreams() claim {
	c := claim{Claim: "draining " + h.drained + " lost no connection"}
	lost, onDrained, later := 0, map[int]bool{}, 0
	seen, server := map[int]bool{}, map[int]string{}
	for _, r := range h.requests {
		if r.stream == 0 {
			continue
		}
		seen[r.stream] = true
		switch {
		case r.err != nil:
			lost++
		case server[r.stream] != "" && server[r.stream] != r.server:
			lost++ // one connection cannot change its server
		default:
			server[r.stream] = r.server
			if r.server == h.drained {
				onDrained[r.stream] = true
				if h.drain.holds(r) {
					later++
				}
			}
		}
	}
	c.Happened = lost == 0 && len(seen) == h.streams && h.streams > 0 && len(onDrained) > 0 && later > 0
	c.Found = fmt.Sprintf("%d of %d open connections were on it, and carried %d requests while it drained; %d failed", len(onDrained), h.streams, later, lost)
	return c
}

func (h *history) drainedQuietly() claim {
	counts := tally(h.requests, func(r request) bool { return r.service == web && r.stream == 0 && h.drain.covers(r) })
	others := 0
	for server, n := range counts {
		if server != h.drained {
			others += n
		}
	}
	return claim{
		Claim:    "and it got no new one",
		Happened: counts[h.drained] == 0 && others > 0,
		Found:    fmt.Sprintf("%d new connections to it, %d to the others", counts[h.drained], others),
	}
}

// persistent: who came back to the shop found the same server.
func (h *history) persistent() claim {
	type who struct {
		v6     bool
		client int
	}
	of, visits, moved := map[who]string{}, 0, 0
	servers := map[string]bool{}
	for _, r := range h.requests {
		if r.service != shop || r.err != nil {
			continue
		}
		w := who{r.v6, r.client}
		if of[w] != "" {
			visits++
			if of[w] != r.server {
				moved++
			}
		}
		of[w] = r.server
		servers[r.server] = true
	}
	return claim{
		Claim:    "every client of the HTTPS shop kept its server",
		Happened: moved == 0 && len(servers) == 2 && visits >= 2*len(of) && len(of) > 2,
		Found:    fmt.Sprintf("%d clients on %d servers, %d returned, %d to another server", len(of), len(servers), visits, moved),
	}
}

func (h *history) echoed() claim {
	counts := tally(h.requests, func(r request) bool { return r.service == echo })
	total, sound := 0, len(counts) == 2
	for _, n := range counts {
		total += n
	}
	var found []string
	for _, server := range slices.Sorted(maps.Keys(counts)) {
		share := part(counts[server], total)
		found = append(found, fmt.Sprintf("%s %.1f%%", server, 100*share))
		sound = sound && math.Abs(share-0.5) <= tolerance
	}
	return claim{
		Claim:    "UDP datagrams were shared evenly and came back unchanged",
		Happened: sound && total >= fewest,
		Found:    fmt.Sprintf("%s (%d datagrams)", strings.Join(found, ", "), total),
	}
}

func (h *history) families() claim {
	c := claim{Claim: "all three services worked over IPv4 and IPv6", Happened: true}
	var found []string
	for s := range services {
		var v4, v6 int
		for _, r := range h.requests {
			if r.service == s && r.err == nil {
				if r.v6 {
					v6++
				} else {
					v4++
				}
			}
		}
		c.Happened = c.Happened && v4 > 0 && v6 > 0
		found = append(found, fmt.Sprintf("%s %d and %d", s, v4, v6))
	}
	c.Found = strings.Join(found, ", ")
	return c
}

// nothingFailed: but for what was on its way to the server that died.
func (h *history) nothingFailed() claim {
	c := claim{Claim: "no request failed but in the announced moment", Happened: len(h.requests) > 0 && h.corrupt == 0}
	window := h.announced()
	if window.to.IsZero() {
		window.to = window.from // the death was never noticed: nothing is excused
	}
	excused, others, first := 0, 0, ""
	for _, r := range h.requests {
		switch {
		case r.err == nil:
		case r.service == web && r.stream == 0 && window.touches(r):
			excused++
		default:
			others++
			if first == "" {
				first = fmt.Sprintf(", the first: %s: %v", r.service, r.err)
			}
		}
	}
	c.Happened = c.Happened && others == 0
	c.Found = fmt.Sprintf("%d requests, %d failed while the death was unnoticed, %d otherwise%s", len(h.requests), excused, others, first)
	if h.corrupt > 0 {
		c.Found += fmt.Sprintf("; %d packets arrived damaged", h.corrupt)
	}
	return c
}

// resent is after how long a client repeats its SYN (RFC 6298, section 2).
const resent = 900 * time.Millisecond

// books: the balancer counted what the clients counted. A SYN that was sent again when its server had died meanwhile, and every
// request that failed, may count once more.
func (h *history) books() claim {
	var good, bad, again uint64
	streams := map[int]bool{}
	for _, r := range h.requests {
		if r.service == web && r.end.Sub(r.start) >= resent {
			again++
		}
		switch {
		case r.service != web:
		case r.stream != 0:
			streams[r.stream] = true
		case r.err == nil:
			good++
		default:
			bad++
		}
	}
	good += uint64(len(streams))
	return claim{
		Claim:    "the balancer counted as many web connections as the clients",
		Happened: h.offered >= good && h.offered <= good+bad+again,
		Found:    fmt.Sprintf("%d counted, %d seen, %d failed, %d asked twice", h.offered, good, bad, again),
	}
}
