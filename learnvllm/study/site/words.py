"""What generated parts of pages say, in the language of the page: English text -> Chinese, as gettext has it.

Titles of exercises and notebooks are not in here: they are the files' own, and those are in English. A test
looks for every text that a generator passes to `say`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

Say = Callable[[str], str]
"""English text -> the same in the language of the page."""

CHINESE = {
    # punctuation
    "{}: {}": "{}：{}",
    "{}, {}": "{}，{}",
    "{0}, {1}": "{0}、{1}",
    # the plan of a day
    "Read": "阅读",
    "Run": "运行",
    "Build": "动手",
    "Answer": "答题",
    "Plan of the day": "当日计划",
    "Concepts": "概念",
    "Exercises": "练习",
    "Walkthrough": "代码导读",
    "In vLLM": "在 vLLM 中",
    "Quiz": "测验",
    "Quiz, {} questions": "测验，{} 题",
    "Step": "步骤",
    "Title": "标题",
    "Minutes:": "分钟:",
    "In the terminal": "在终端里",
    "**All**": "**合计**",
    # exercises
    "This day has no exercises yet.": "这一天还没有练习。",
    "No.:": "序号:",
    "Exercise": "练习",
    "Level": "类型",
    "Points:": "分数:",
    "All": "合计",
    "fill-in": "填空",
    "module": "整个模块",
    "break-and-fix": "找错并修复",
    "extend": "扩展",
    "write one method": "写一个方法",
    "write a module from its contract": "按约定写出一个模块",
    "find the fault in a file that looks right": "在看似正确的文件里找出错误",
    "add a feature to the engine": "给引擎增加一个功能",
    "- **Write** {} in `{}`.": "- **要写的**：{}，在 `{}` 里。",
    "the repair of {}": "修复 {}",
    "- **Level**: {} ({}), {} minutes, {} points, {} hints.": (
        "- **类型**：{}（{}），{} 分钟，{} 分，{} 条提示。"
    ),
    "- **Read first**: {}.": "- **先读**：{}。",
    "- **Do first**: {}.": "- **先做**：{}。",
    "- **Not asked**: {}": "- **不要求**：{}",
    "grade it; --watch grades whenever the file is saved": "评分；加 --watch 则每次保存都评分",
    "the next hint": "下一条提示",
    "concepts": "概念",
    "exercises": "练习",
    "walkthrough": "代码导读",
    "upstream": "在 vLLM 中",
    # the quiz; quiz_logic.js says the rest
    "This day has no quiz yet.": "这一天还没有测验。",
    "The answer": "答案",
    "Your answer:": "你的答案：",
    "Any number of them may be right.": "正确的选项可能不止一个。",
    "Right": "正确",
    "Wrong": "错误",
    "Read about it": "阅读相关内容",
    # notebooks
    "Download the notebook": "下载 notebook",
    ", or run it: ": "，或者运行：",
    "Notebook: {}": "Notebook：{}",
    # the days
    "Architecture": "架构",
    "Engine core": "引擎核心",
    "Scheduling": "调度",
    "KV cache": "KV 缓存",
    "Executor and worker": "执行器与 worker",
    "Model layers": "模型层",
    "Quantization": "量化",
    "Speculative decoding": "投机解码",
    "Multimodal": "多模态",
    "Distributed": "分布式",
    "Serving": "服务",
    "Day:": "天:",
    "Topic": "主题",
    "Time": "用时",
    "one page": "一页",
    "*coming*": "*尚未写成*",
    "{} exercises, {} points": "{} 个练习，{} 分",
    # the four routes
    "Eleven days": "十一天",
    "Day 1": "第 1 天",
    "One topic a day: read, run, build, answer. Begin with {}; the terminal keeps count:": (
        "每天一个主题：阅读、运行、动手、答题。从{}开始；进度由终端记录："
    ),
    "the plan of the day": "今天的计划",
    "the next thing to do": "接下来做什么",
    "all of it on one screen": "全部放在一个屏幕里",
    "One hour": "一小时",
    "How a request becomes tokens, in {} minutes of reading.": "一个请求如何变成词元：{} 分钟的阅读。",
    "{}, {} minutes": "{}，{} 分钟",
    "I operate vLLM": "我在运维 vLLM",
    "What to turn, what to watch, what breaks.": "能调什么，该看什么，会坏什么。",
    "{}: why it behaves as it does": "{}：为什么它会这样表现",
    "Every setting of the engine, what it means and its default": "引擎的每一项设置：含义与默认值",
    "The flags of `learnvllm serve`, named as vLLM's": "`learnvllm serve` 的命令行参数，与 vLLM 同名",
    "What `/metrics` says": "`/metrics` 说了什么",
    "Environment variables": "环境变量",
    "The HTTP API": "HTTP API",
    "Mechanisms and faults: what was reported, and what holds it here": (
        "机制与故障：别处报告过什么，这里靠什么守住"
    ),
    "I interview tomorrow": "我明天面试",
    "The mental models, the questions, the words.": "心智模型、问题、术语。",
    "what to be able to explain": "要能讲清楚的内容",
    "the questions": "测验题目",
    "The words, in English and Chinese": "中英文术语",
    "The way of a request": "一个请求的全程",
}


def listed(parts: Iterable[str], say: Say) -> str:
    """One after the other."""
    return functools.reduce(say("{0}, {1}").format, parts)


def chinese(english: str) -> str:
    """A text without a translation stays as it is."""
    return CHINESE.get(english, english)


SAY: dict[str, Say] = {"en": str, "zh": chinese}
"""By the language of the page."""
