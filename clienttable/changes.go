package clienttable

type changeLog[K comparable, V any] struct{}

func (l *changeLog[K, V]) store(k *K, v *V, m uint64, exp int64) {}
func (l *changeLog[K, V]) remove(k *K, why Reason)               {}
