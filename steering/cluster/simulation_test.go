package cluster_test

import (
	"flag"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/cluster/internal/simnet"
)

var (
	update = flag.Bool("update", false, "run the whole simulation and write doc/simulation.md and its drawing")
	sizes  = flag.String("sizes", simSizes, "with -update: balancers x flows of each of them; with an m before them by the model, else by the layers")
)

const simSizes = "2x1000,4x1000,8x1000,16x1000,32x1000,64x1000,256x1000,1000x100,m16x1000,m64x1000,m256x1000,m1000x1000,m1000x10000"

// simTail says what the table does not.
const simTail = `
## What it says

- Beyond 8 balancers regular traffic depends on a balancer's own flows and not on the number of balancers: 1.6 kB/s (the busiest 2.0) for 1,000 flows of which 1 %
  change each second; ten times that for 10,000.
- The loss of one balancer, and its return, cost entries in proportion to its own flows, spread over all others: the more these are, the less each sends.
- When a quarter of the balancers comes back, about three entries a flow are sent, whatever the number of balancers; a comparison with each of those that come back
  is added to that, of less than a hundred bytes where little is shared. A balancer looks through its entries once for all comparisons that are due together.

## The model

What the layers take grows with the square of the number of balancers, mostly for the comparisons at the end of a partition of so many, and so they are run for 1,000 balancers with a tenth of
the flows only (of which ten percent a second end and begin, and none during the partition). The rows "model" are
by steering/cluster/internal/simnet.Model, which keeps a flow as its origin and its slot. Exact, over all flows and none sampled, are where flows live (the rendezvous of the package itself, for all sets
of members that occur), which of them a change of members affects, who tells whom of them, and the frames and bytes of that; modelled are the times at which members notice something. It takes
for granted that what was sent has arrived, so that it has no agreement of its own to show, and leaves out comparisons that begin while what they would find is under way: with few
balancers the layers send more entries after a loss or a return than it says. The sizes that both were run for show by how much.
`

// simFlow is a flow by its number.
func simFlow(i int) flowshare.Flow {
	client := netip.AddrFrom4([4]byte{byte(10 + i>>24), byte(i >> 16), byte(i >> 8), byte(i)})
	return flowshare.MakeFlow(6, netip.AddrPortFrom(client, uint16(1024+i%50000)), simServer)
}

var simServer = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 443)

// simNodes are the names of the nodes.
var simNodes = func() (names [16]string) {
	for i := range names {
		names[i] = fmt.Sprintf("sh%d", i)
	}
	return names
}()

func simValue(i int) flowshare.Value { return flowshare.Value{Node: simNodes[i%16]} }

// A course is one simulation: balancers, flows that begin and end, and a schedule of failures.
type course struct {
	w     *simnet.World
	model bool
	n     int
	each  int
	next  int
	by    map[*simnet.Node][]int // open flows
	agree float64                // the least share of look-ups that found the right node once all had settled

	churnFrames, churnBytes, churnMost float64 // per second and balancer
	kill, join, part                   change
}

// A change of members and what it cost.
type change struct {
	took   time.Duration // until every look-up of a sample is right
	flows  uint64        // entries told to another holder, or compared and sent
	bytes  float64       // per balancer
	failed float64       // look-ups of the sample that went wrong in between
}

func (c *course) open(b *simnet.Node, k int) {
	for range k {
		b.Layer.Announce(simFlow(c.next), simValue(c.next))
		c.by[b] = append(c.by[b], c.next)
		c.next++
	}
	b.Touch()
}

func (c *course) end(b *simnet.Node, k int) {
	open := c.by[b]
	for range min(k, len(open)) {
		i := c.w.Rand.IntN(len(open))
		b.Layer.Withdraw(simFlow(open[i]))
		open[i] = open[len(open)-1]
		open = open[:len(open)-1]
	}
	c.by[b] = open
	b.Touch()
}

// sample asks balancers for flows of others and returns the share of wrong answers.
func (c *course) sample(k int) float64 {
	alive := c.w.AliveNodes()
	wrong := 0
	for range k {
		owner, asker := alive[c.w.Rand.IntN(len(alive))], alive[c.w.Rand.IntN(len(alive))]
		if len(c.by[owner]) == 0 {
			continue
		}
		i := c.by[owner][c.w.Rand.IntN(len(c.by[owner]))]
		answered := false
		asker.Find(simFlow(i), func(v flowshare.Value, ok bool) {
			answered = true
			if !ok || v != simValue(i) {
				wrong++
			}
		})
		_ = answered
	}
	c.w.Run(60 * time.Millisecond)
	return float64(wrong) / float64(k)
}

func (c *course) totals() (moved uint64, frames, bytes, most float64) {
	for _, b := range c.w.Nodes {
		s := b.Layer.Stats()
		moved += s.Moved + s.Repaired
		frames += float64(b.Frames)
		bytes += float64(b.Bytes)
	}
	return moved, frames / float64(c.n), bytes / float64(c.n), 0
}

// measure makes a change and waits until samples are right.
func (c *course) measure(do func()) (ch change) {
	moved, _, bytes, _ := c.totals()
	do()
	asked, right := 0, 0
	start := c.w.Now
	for right < 3 && c.w.Now.Sub(start) < 2*time.Minute {
		wrong := c.sample(400)
		ch.failed += wrong
		asked++
		if right++; wrong > 0 {
			right = 0
		}
		if right == 1 {
			ch.took = c.w.Now.Sub(start)
		}
		c.w.Run(440 * time.Millisecond)
	}
	ch.failed /= float64(asked)
	c.w.Run(15 * time.Second) // what is settled later
	m, _, b, _ := c.totals()
	ch.flows, ch.bytes = m-moved, b-bytes
	c.agree = min(c.agree, 1-c.sample(2000))
	return ch
}

func simulate(n, each int, seed uint64) *course {
	cfg := simnet.Config{Seed: seed, Layer: flowshare.Config{RepairEvery: 10 * time.Second}, Store: func() flowshare.Store { return &slimStore{} }}
	c := &course{w: simnet.New(cfg, n), n: n, each: each, by: map[*simnet.Node][]int{}, agree: 1}
	for range 20 { // ten seconds
		for _, b := range c.w.Nodes {
			c.open(b, each/20)
		}
		c.w.Run(500 * time.Millisecond)
	}
	c.w.Run(2 * time.Second)
	c.agree = min(c.agree, 1-c.sample(2000))

	_, f0, b0, _ := c.totals()
	before := map[*simnet.Node]uint64{}
	for _, b := range c.w.Nodes {
		before[b] = b.Bytes
	}
	const seconds = 5
	for range seconds * 10 {
		for _, b := range c.w.Nodes {
			k := max(1, each/1000)
			c.end(b, k)
			c.open(b, k)
		}
		c.w.Run(100 * time.Millisecond)
	}
	_, f1, b1, _ := c.totals()
	c.churnFrames, c.churnBytes = (f1-f0)/seconds, (b1-b0)/seconds
	for _, b := range c.w.Nodes {
		c.churnMost = max(c.churnMost, float64(b.Bytes-before[b])/seconds)
	}
	c.w.Run(time.Second)
	c.agree = min(c.agree, 1-c.sample(2000))

	victim := c.w.Nodes[n/2]
	c.kill = c.measure(func() { c.w.Kill(victim) })
	// Its connections go on by way of others.
	orphans := c.by[victim]
	delete(c.by, victim)
	for k, i := range orphans {
		b := c.w.AliveNodes()[k%(n-1)]
		b.Layer.Announce(simFlow(i), simValue(i))
		c.by[b] = append(c.by[b], i)
		b.Touch()
	}
	c.w.Run(2 * time.Second)
	c.join = c.measure(func() { c.w.Restart(victim) })
	away := c.w.Nodes[:max(1, n/4)]
	c.w.Partition(1, away...)
	for range 20 {
		for _, b := range c.w.Nodes {
			c.end(b, each/200)
			c.open(b, each/200)
		}
		c.w.Run(time.Second)
	}
	c.part = c.measure(func() { c.w.Partition(0, away...) })
	return c
}

// simulateModel is simulate by the model.
func simulateModel(n, each int, seed uint64) *course {
	m := simnet.NewModel(simnet.Config{Seed: seed}, n, each, flowshare.DefaultHolders, simFlow)
	c := &course{model: true, n: n, each: each, agree: math.NaN()}
	sent := func() (frames, bytes float64) {
		for i := range m.Frames {
			frames += m.Frames[i] / float64(n)
			bytes += m.Bytes[i] / float64(n)
		}
		return frames, bytes
	}
	const seconds = 5
	for range seconds * 10 {
		m.Churn(max(1, each/1000))
	}
	m.Let(seconds * time.Second)
	f, b := sent()
	c.churnFrames, c.churnBytes = f/seconds, b/seconds
	for _, b := range m.Bytes {
		c.churnMost = max(c.churnMost, b/seconds)
	}
	measure := func(do func() simnet.Change) (ch change) {
		_, before := sent()
		x := do()
		m.Let(16*time.Second + x.Took)
		_, after := sent()
		return change{took: x.Took, flows: x.Entries, bytes: after - before}
	}
	c.kill = measure(func() simnet.Change { return m.Kill(n / 2) })
	m.Adopt(n / 2)
	c.join = measure(func() simnet.Change { return m.Back(n / 2) })
	m.Partition(max(1, n/4), 20, each/200)
	c.part = measure(m.Heal)
	return c
}

// row is a line of the table.
func (c *course) row() string {
	secs := func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }
	by, agree := "layers", fmt.Sprintf("%.4f", c.agree*100)
	if c.model {
		by, agree = "model", "–"
	}
	return fmt.Sprintf("| %d | %s | %s | %s | %.0f | %.1f | %.1f | %s, %s, %.0f | %s, %s, %.0f | %s, %s, %.0f |\n", c.n, count(c.n*c.each), by, agree,
		c.churnFrames, c.churnBytes/1000, c.churnMost/1000,
		secs(c.kill.took), count(int(c.kill.flows)), c.kill.bytes/1000, secs(c.join.took), count(int(c.join.flows)), c.join.bytes/1000,
		secs(c.part.took), count(int(c.part.flows)), c.part.bytes/1000)
}

func count(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// TestSimulation runs a small course and holds it to what the documentation claims; with -update it runs the
// large ones and writes the documentation.
func TestSimulation(t *testing.T) {
	if !*update {
		for _, n := range []int{4, 20} {
			c := simulate(n, 200, 1)
			require.Equal(t, 1.0, c.agree, "%d balancers agree", n)
			require.Less(t, c.kill.took, 15*time.Second)
			require.Less(t, c.join.took, 30*time.Second)
			require.Less(t, c.part.took, 30*time.Second)
			if n == 4 {
				require.Equal(t, c.next, simulate(n, 200, 1).next, "the same seed does the same")
			}
			if n > flowshare.DefaultThreshold { // the model says the same, as far as it goes
				m := simulateModel(n, 200, 1)
				t.Logf("\n%s%s", c.row(), m.row())
				require.InEpsilon(t, c.churnBytes, m.churnBytes, 0.25)
				require.InEpsilon(t, c.churnFrames, m.churnFrames, 0.25)
				require.Less(t, m.kill.flows, 11*c.kill.flows/10)
				require.Less(t, m.join.flows, 11*c.join.flows/10)
				require.InEpsilon(t, float64(c.part.flows), float64(m.part.flows), 0.5)
				require.Equal(t, m.row(), simulateModel(n, 200, 1).row())
				require.NotEqual(t, m.row(), simulateModel(n, 200, 2).row())
			}
		}
		large := simulateModel(1000, 50, 1)
		require.Less(t, float64(large.part.flows)/50_000, 4.0, "entries a flow")
		require.Less(t, large.kill.took, 4*time.Second)
		return
	}
	const head = `# Many balancers, simulated

The layer of steering/cluster/flowshare as it is, over a simulated network and clock (steering/cluster/internal/simnet): frames take 0.1 to
0.5 ms, streams that break lose what was under way. Membership is a model of memberlist, not memberlist: a member
notices that another one is gone after 1.5 to 3.5 s, and that one is there after 0.05 to 1 s, each for itself; with more than 32 balancers the halves of
a partition are noticed as a whole, and who comes back learns of all others at once. Bytes are those of frames, without TLS, TCP and gossip. Up to 8 balancers hold every flow; with more, a flow has its
origin and two holders. Seed 1. Rows by the model are explained below. The entries of the simulation are kept in a store of 24 bytes an entry, by the interface that any user's store has.

All flows begin within ten seconds. Then 1 %% of a balancer's flows end and as many begin every second (the columns of churn, for each
balancer). Then one of them is killed; its flows go on by way of the others; it comes back knowing nothing; and a quarter of the balancers is
cut off for 20 s, while half a percent of the flows end and begin every second on both sides. For each of the three: seconds until samples of 400 look-ups, at balancers
by chance for flows of others, were all right three times in a row; entries sent because of it; and kB sent by each balancer in that time and the 15 s after
it, their regular traffic included. Agreement is the least share of 2,000 such look-ups at rest, after each step.

Written by %s.

| balancers | flows | by | agreement %% | churn: frames/s | kB/s | busiest kB/s | killed: s, entries, kB | back: s, entries, kB | healed: s, entries, kB |
|---|---|---|---|---|---|---|---|---|---|
`
	command := "`go test ./steering/cluster -run TestSimulation -update -timeout 2h`"
	if *sizes != simSizes {
		command = fmt.Sprintf("`go test ./steering/cluster -run TestSimulation -update -sizes %s -timeout 2h`", *sizes)
	}
	text := fmt.Sprintf(head, command)
	var cs []*course
	for size := range strings.SplitSeq(*sizes, ",") {
		var n, each int
		of, model := strings.CutPrefix(size, "m")
		_, err := fmt.Sscanf(of, "%dx%d", &n, &each)
		require.NoError(t, err, "-sizes %s", size)
		start := time.Now()
		run := simulate
		if model {
			run = simulateModel
		}
		c := run(n, each, 1)
		took := fmt.Sprintf("%.0f s", time.Since(start).Seconds())
		t.Logf("%s in %s", c.row(), took)
		fmt.Println(size, took)
		text += c.row()
		c.w, c.by = nil, nil
		cs = append(cs, c)
		require.NoError(t, os.MkdirAll("doc", 0o755))
		require.NoError(t, os.WriteFile("doc/simulation.md", []byte(text+"\n![bytes](simulation.svg)\n"+simTail), 0o644))
		require.NoError(t, os.WriteFile("doc/simulation.svg", []byte(draw(cs)), 0o644))
	}
}

// draw shows what a balancer sends over the size of the cluster.
func draw(cs []*course) string {
	const w, h, left, bottom = 720, 320, 70, 40
	cs = slices.DeleteFunc(slices.Clone(cs), func(c *course) bool { return c.each != 1000 }) // comparable ones
	all := slices.Clone(cs)
	cs = slices.DeleteFunc(cs, func(c *course) bool { // the layers where there are both
		return c.model && slices.ContainsFunc(all, func(o *course) bool { return !o.model && o.n == c.n })
	})
	most := 1.0
	for _, c := range cs {
		most = max(most, c.churnMost/1000)
	}
	y := func(v float64) float64 { return h - bottom - v/most*(h-bottom-30) }
	x := func(n int) float64 { return left + math.Log2(float64(n))/10*(w-left-20) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", w, h)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", w, h)
	fmt.Fprintf(&b, `<text x="%d" y="18">kB a balancer sends each second, 1 %% of its flows ending and as many beginning: mean and busiest</text>`+"\n", left)
	fmt.Fprintf(&b, `<path d="M%d 26V%dH%d" fill="none" stroke="black"/>`+"\n", left, h-bottom, w-10)
	for i := range 5 {
		v := most * float64(i) / 4
		fmt.Fprintf(&b, `<text x="%d" y="%.0f" text-anchor="end">%.0f</text>`+"\n", left-6, y(v)+4, v)
	}
	for _, line := range []struct {
		colour string
		v      func(*course) float64
	}{{"#1f77b4", func(c *course) float64 { return c.churnBytes / 1000 }}, {"#d62728", func(c *course) float64 { return c.churnMost / 1000 }}} {
		var p []string
		for _, c := range cs {
			p = append(p, fmt.Sprintf("%.1f,%.1f", x(c.n), y(line.v(c))))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(p, " "), line.colour)
	}
	for _, c := range cs {
		fmt.Fprintf(&b, `<text x="%.0f" y="%d" text-anchor="middle">%d</text>`+"\n", x(c.n), h-bottom+16, c.n)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">balancers</text></svg>`+"\n", w-10, h-6)
	return b.String()
}
