package steering

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of the simulation anew")

// The simulation: four nodes of capacities 100, 200, 200 and 400 (plus a backup) get
// 120 new sessions a second of 5 s each on average, two thirds of what they can hold. At 60 s
// one of the nodes of 200 fails, at 100 s it is back with a slow start of 30 s; from
// 160 s to 200 s a second job takes half of the memory of the node of 400. Pressure comes from the node's
// own sessions and memory through the default thresholds.
type simulation struct {
	pool *Pool
	rand *rand.Rand
	now  time.Time
	ends endings
	rows []simRow
}

type simRow struct {
	second   int
	share    []float64 // of the sessions begun in this row
	sessions []int64
	level    []Level
	none     int
}

type ending struct {
	at time.Time
	id NodeID
}

type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

const simStep = 5 // seconds a row

func simulate(t *testing.T, m Metric) []simRow {
	caps := []int{100, 200, 200, 400, 200}
	var ns []Node
	for i, c := range caps {
		ns = append(ns, Node{Name: fmt.Sprintf("sh%d", i+1), Weight: c, Capacity: c, Backup: i == 4, MaxSessions: c})
	}
	s := &simulation{
		pool: newPool(t, &Config{Metric: m, SlowStart: 30 * time.Second, Interval: simStep * time.Second, TableSize: 4099}, ns...),
		rand: rand.New(rand.NewPCG(42, uint64(m))), now: time.Unix(0, 0),
	}
	ids := make([]NodeID, len(ns))
	index := map[NodeID]int{}
	for i, n := range ns {
		ids[i] = id(t, s.pool, n.Name)
		index[ids[i]] = i
	}
	down := map[NodeID]bool{}
	for second := range 240 {
		switch second {
		case 60:
			down[ids[2]] = true
			s.pool.SetUpAt(s.now, ids[2], false)
			// Its sessions die with it.
			kept := s.ends[:0]
			for _, e := range s.ends {
				if e.id == ids[2] {
					s.pool.Release(e.id)
				} else {
					kept = append(kept, e)
				}
			}
			s.ends = kept
			heap.Init(&s.ends)
		case 100:
			down[ids[2]] = false
			s.pool.SetUpAt(s.now, ids[2], true)
		}
		if second%simStep == 0 {
			s.pool.Tick()
			s.rows = append(s.rows, simRow{second: second, share: make([]float64, len(ns))})
		}
		row := &s.rows[len(s.rows)-1]
		begin := s.now
		for range 120 {
			s.now = s.now.Add(time.Second / 120)
			for len(s.ends) > 0 && !s.ends[0].at.After(s.now) {
				s.pool.Release(heap.Pop(&s.ends).(ending).id)
			}
			s.pool.Step(s.now)
			got, err := s.pool.Pick(client(s.rand.IntN(1 << 20)))
			if err != nil {
				row.none++
				continue
			}
			require.False(t, down[got], "a dead node was picked")
			row.share[index[got]]++
			s.pool.AddOctets(got, uint64(1000+s.rand.IntN(2000)))
			life := 3*time.Second + time.Duration(s.rand.Int64N(int64(4*time.Second)))
			heap.Push(&s.ends, ending{s.now.Add(life), got})
		}
		s.now = begin.Add(time.Second)
		row.sessions, row.level = nil, nil
		for i, nid := range ids {
			st, ok := s.pool.Status(nid)
			require.True(t, ok)
			used := float64(st.Sessions) / float64(caps[i])
			memory := used
			if i == 3 && second >= 160 && second < 200 {
				memory += 0.35
			}
			s.pool.Report(nid, Gauges{Memory: min(memory, 1), Sessions: used})
			// The longer the queue, the slower the answer.
			s.pool.Observe(nid, time.Duration(10+40*used*float64(100)/float64(caps[i]))*time.Millisecond)
			row.sessions = append(row.sessions, st.Sessions)
			row.level = append(row.level, st.Pressure)
		}
	}
	for i := range s.rows {
		n := 0.0
		for _, x := range s.rows[i].share {
			n += x
		}
		for j := range s.rows[i].share {
			s.rows[i].share[j] /= max(n, 1)
		}
	}
	return s.rows
}

// Load, pressure and failure over time. The tables are kept in doc/; -update writes
// them anew.
func TestSimulation(t *testing.T) {
	var text strings.Builder
	text.WriteString(`# Load, pressure and failure, simulated

Four nodes of capacity 100, 200, 200 and 400 and a backup of 200 take 120 sessions a second of 3 to 7 s each. At 60 s the node
sh3 fails with all its sessions, at 100 s it is back with a slow start of 30 s; from 160 s to 200 s another job takes 35 % of the
memory of sh4. Every second each node reports its sessions and memory; pressure follows the default thresholds (high from 80 %
until below 70 %, severe from 95 % until below 85 %). Each row is the share of the sessions begun in five seconds, and behind it the
pressure at their end: ! high, !! severe. Written by ` + "`go test ./steering -run TestSimulation -update`" + `.
`)
	for _, m := range []Metric{LeastConns, RoundRobin, Maglev, Capacity, RandomTwo, Response, Bandwidth} {
		rows := simulate(t, m)
		fmt.Fprintf(&text, "\n## %s\n\n| s | sh1 (100) | sh2 (200) | sh3 (200) | sh4 (400) | sh5 (backup) | none |\n|---|---|---|---|---|---|---|\n", m)
		for _, r := range rows {
			fmt.Fprintf(&text, "| %d |", r.second)
			for i, x := range r.share {
				fmt.Fprintf(&text, " %.2f%s |", x, strings.Repeat("!", int(r.level[i])))
			}
			fmt.Fprintf(&text, " %d |\n", r.none)
		}
		at := func(second int) simRow { return rows[second/simStep] }
		if m != Response && m != Bandwidth {
			require.InDelta(t, 4.0/9, at(40).share[3], 0.06, "%s: shares by capacity", m)
		}
		require.Zero(t, at(80).share[2], "%s: failed", m)
		require.Less(t, at(100).share[2], at(40).share[2]/2, "%s: slow start", m)
		require.InDelta(t, at(40).share[2], at(150).share[2], 0.05, "%s: back in full", m)
		if m != Response && m != Bandwidth {
			mean := 0.0
			for second := 165; second < 200; second += simStep {
				mean += at(second).share[3] / 7
			}
			require.Less(t, mean, 0.92*4/9, "%s: pressure", m)
			require.InDelta(t, 4.0/9, at(235).share[3], 0.08, "%s: pressure is over", m)
		}
		for _, r := range rows {
			require.Zero(t, r.none, "%s at %d s: the backup takes what is too much", m, r.second)
		}
		keep(t, filepath.Join("doc", "simulation-"+m.String()+".svg"), svg(m, rows))
	}
	keep(t, filepath.Join("doc", "simulation.md"), text.String())
}

func keep(t *testing.T, path, content string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		return
	}
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(b), content, "%s: run with -update and look at the difference", path)
}

// svg draws the shares as stacked bars.
func svg(m Metric, rows []simRow) string {
	colours := []string{"#4477aa", "#66ccee", "#228833", "#ccbb44", "#bbbbbb"}
	const width, height = 12, 200
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", len(rows)*width+110, height+50)
	fmt.Fprintf(&b, `<text x="30" y="14">%s: share of new sessions over time (s)</text>`+"\n", m)
	for i, r := range rows {
		y := 20.0
		for j, x := range r.share {
			h := x * height
			if h > 0 {
				fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="%d" height="%.1f" fill="%s"/>`+"\n", 30+i*width, y, width-1, h, colours[j])
			}
			y += h
		}
		if r.second%40 == 0 {
			fmt.Fprintf(&b, `<text x="%d" y="%d">%d</text>`+"\n", 30+i*width, height+34, r.second)
		}
	}
	for j, c := range colours {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">sh%d</text>`+"\n",
			len(rows)*width+40, 24+j*18, c, len(rows)*width+56, 33+j*18, j+1)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
