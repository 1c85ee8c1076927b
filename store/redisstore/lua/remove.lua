-- Removes keys in any state, also damaged ones, and reports whether they were
-- there.

local answers = {}
for i = 1, count do
  local first, member = 2 + (i - 1) * stride, ARGV[2 + i * fields]
  local was = redis.call('DEL', KEYS[first])
  for j = first + 1, first + stride - 1 do
    was = was + (own('SREM', KEYS[j], member) or 0)
  end
  answers[i] = was > 0 and 'K' or 'A'
end
return answers
