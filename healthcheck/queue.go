package healthcheck

// queue is a first-in first-out list of targets.
type queue struct {
	ts   []*target
	head int
}

func (q *queue) len() int       { return len(q.ts) - q.head }
func (q *queue) first() *target { return q.ts[q.head] }

func (q *queue) push(t *target) {
	if q.head > 1024 && q.head > len(q.ts)/2 {
		n := copy(q.ts, q.ts[q.head:])
		clear(q.ts[n:])
		q.ts, q.head = q.ts[:n], 0
	}
	q.ts = append(q.ts, t)
}

func (q *queue) pop() *target {
	if q.head == len(q.ts) {
		return nil
	}
	t := q.ts[q.head]
	q.ts[q.head] = nil
	q.head++
	if q.head == len(q.ts) {
		q.ts, q.head = q.ts[:0], 0
	}
	return t
}

// line is what waits for its probe. Targets that took long the last time wait by
// themselves.
type line struct {
	quick, slow queue
}

func (l *line) len() int { return l.quick.len() + l.slow.len() }

func (l *line) push(t *target) {
	if t.slow {
		l.slow.push(t)
	} else {
		l.quick.push(t)
	}
}
