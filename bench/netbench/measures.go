package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// measure is a figure.
type measure struct {
	name, what, unit string
	lowIsGood        bool
	perCPU           string // what a unit of work is called when CPU time is divided by it
	take             func(ctx context.Context, l *lab, addr string, o options) (float64, error)
}

var measures = []measure{
	{"bulk", "TCP throughput of one stream (iperf3)", "Gb/s", false, "GB", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return iperf(ctx, l, a, o.seconds, "-P", "1")
	}},
	{"streams", "TCP throughput of 100 streams (iperf3)", "Gb/s", false, "GB", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return iperf(ctx, l, a, o.seconds, "-P", "100")
	}},
	{"conns", "new TCP connections with one HTTP request each (wrk, 32 at a time)", "/s", false, "k", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return wrk(ctx, l, a, o.seconds, "-H", "Connection: close")
	}},
	{"requests", "HTTP requests on 32 kept connections (wrk)", "/s", false, "k", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return wrk(ctx, l, a, o.seconds)
	}},
	{"udp", "UDP datagrams of 64 bytes that arrive (iperf3)", "/s", false, "k", udp},
	{"p50", "median time of a small request under half load", "µs", true, "", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return latency(ctx, l, a, o, 0.5)
	}},
	{"p99", "99th percentile of the same", "µs", true, "", func(ctx context.Context, l *lab, a string, o options) (float64, error) {
		return latency(ctx, l, a, o, 0.99)
	}},
	{"memory", "resident memory of the balancer's process with that many sessions open (-sessions); with ~ calculated from those that open files allow", "MB", true, "", memory},
}

// measureNames returns the names of what is measured unless others are chosen, and of all.
func measureNames() (usual, all []string) {
	for _, m := range measures {
		usual = append(usual, m.name)
	}
	all = slices.Clone(usual)
	for _, m := range delayedMeasures {
		all = append(all, m.name)
	}
	return usual, all
}

func measureByName(name string) *measure {
	for _, list := range [][]measure{measures, delayedMeasures} {
		for i := range list {
			if list[i].name == name {
				return &list[i]
			}
		}
	}
	return nil
}

type iperfResult struct {
	Error string
	End   struct {
		Received struct {
			Bits    float64 `json:"bits_per_second"`
			Packets float64
		} `json:"sum_received"`
		Sum struct {
			Packets float64
			Lost    float64 `json:"lost_packets"`
			Seconds float64
		}
	}
}

func iperf(ctx context.Context, l *lab, addr string, d time.Duration, args ...string) (float64, error) {
	r, err := runIperf(ctx, l, addr, d, args...)
	return r.End.Received.Bits / 1e9, err
}

func runIperf(ctx context.Context, l *lab, addr string, d time.Duration, args ...string) (r iperfResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
	defer cancel()
	var out []byte
	// The server takes one test at a time, and may not be done with the one before.
	for range 5 {
		out, err = l.command(ctx, l.client, "iperf3", append([]string{"-c", addr, "-p", "5201", "-J", "-t", seconds(d)}, args...)...)
		r = iperfResult{}
		if jerr := json.Unmarshal(out, &r); jerr != nil {
			return r, errors.Join(err, jerr)
		}
		if r.Error == "" {
			return r, err
		}
		err = errors.New(r.Error)
		time.Sleep(500 * time.Millisecond)
	}
	return r, err
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }

func udp(ctx context.Context, l *lab, addr string, o options) (float64, error) {
	r, err := runIperf(ctx, l, addr, o.seconds, "-u", "-b", "0", "-l", "64")
	if err != nil || r.End.Sum.Seconds == 0 {
		return 0, errors.Join(err, errors.New("no datagrams"))
	}
	return (r.End.Sum.Packets - r.End.Sum.Lost) / r.End.Sum.Seconds, nil
}

var rate = regexp.MustCompile(`Requests/sec:\s*([0-9.]+)`)

func wrk(ctx context.Context, l *lab, addr string, d time.Duration, args ...string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
	defer cancel()
	args = append([]string{"-t1", "-c32", "-d" + seconds(d) + "s"}, append(args, "http://"+inURL(addr)+"/")...)
	out, err := l.command(ctx, l.client, "wrk", args...)
	if err != nil {
		return 0, err
	}
	m := rate.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("wrk: %s", out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// latency sends requests at a pace that is the same for every mode, over kept connections.
func latency(ctx context.Context, l *lab, addr string, o options, q float64) (float64, error) {
	all, took, err := clients(ctx, l, addr, o.seconds, time.Second/time.Duration(o.pace))
	if err != nil {
		return 0, err
	}
	// Who cannot keep up is not under half load, and its figures say how long the measurement took rather than anything else.
	if due := took.Seconds() * float64(o.pace); float64(len(all)) < 0.9*due || len(all) == 0 {
		return 0, fmt.Errorf("overloaded: answered %d of %.0f requests at %d per second", len(all), due, o.pace)
	}
	slices.Sort(all)
	return float64(all[int(q*float64(len(all)-1))].Nanoseconds()) / 1e3, nil
}

// clients send a request every gap, together, or as fast as they can for none.
func clients(ctx context.Context, l *lab, addr string, d, gap time.Duration) (all []time.Duration, took time.Duration, err error) {
	const conns = 16
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			times, fault := paced(ctx, l, addr, conns*gap, time.Duration(i)*gap)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, times...)
			err = errors.Join(err, fault)
		})
	}
	wg.Wait()
	return all, time.Since(began), err
}

// paced measures requests from when they were due, so that a stall counts for all that waited.
func paced(ctx context.Context, l *lab, addr string, every, offset time.Duration) (times []time.Duration, err error) {
	c, err := l.client.DialContext(ctx, "tcp", net.JoinHostPort(addr, "80"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	request := []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	for due := time.Now().Add(offset); ctx.Err() == nil; due = due.Add(every) {
		time.Sleep(time.Until(due))
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return nil, err
		}
		if _, err := c.Write(request); err != nil {
			return nil, err
		}
		if err := response(r); err != nil {
			return nil, err
		}
		times = append(times, time.Since(due))
	}
	return times, nil
}

func response(r *bufio.Reader) error {
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if n, ok := cutInt(line, "Content-Length: "); ok {
			length = n
		}
		if len(line) <= 2 {
			_, err := io.CopyN(io.Discard, r, int64(length))
			return err
		}
	}
}

func cutInt(line []byte, prefix string) (int, bool) {
	if len(line) < len(prefix)+2 || string(line[:len(prefix)]) != prefix {
		return 0, false
	}
	n, err := strconv.Atoi(string(line[len(prefix) : len(line)-2]))
	return n, err == nil
}
